"""The gateway under an operator's hands: a full disk, silence of Redis, several processes, a stop."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import redis

from contracts.redis_names import GATEWAYS, ROUTES_VERSION, USAGE_STREAM
from contracts.usage_event import UsageEvent
from demo.valkey import server_command
from gateway.resources import Resources
from gateway.routing import Authorizer
from gateway.settings import Settings
from gateway.usage.wal import Wal
from gateway.usage.wal_records import CLOSED
from gateway.usage.wal_slots import Slot
from tests.conftest import free_port, stop
from tests.gateway.conftest import ControlPlane, GatewayProcess, reference, route_table
from tests.gateway.test_app import ask, post
from tests.waiting import eventually

pytestmark = pytest.mark.costly("starts gateways of its own")


def serving(gateway: GatewayProcess) -> list[int]:
    """Process ids of the serving processes."""
    assert gateway.process is not None
    pid = gateway.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextmanager
def no_room(gateway: GatewayProcess) -> Iterator[None]:
    """The kernel refuses every write to a file by the serving processes, as a full disk would."""
    before = {pid: resource.prlimit(pid, resource.RLIMIT_FSIZE) for pid in serving(gateway)}
    for pid, (_, hard) in before.items():
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        for pid, limits in before.items():
            resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)


@pytest.mark.skipif(sys.platform != "linux", reason="limits another process by prlimit(2)")
@pytest.mark.costly("fills a file system")
def test_a_full_disk_holds_back_ends_and_refuses_new_work(
    own_gateway: GatewayProcess, control_plane: ControlPlane, upstream: str
) -> None:
    control_plane.publish(route_table(upstream))
    own_gateway.start()
    plain = {"model": "bot", "messages": ask(tokens=5, delay=0.6)}
    before = len(calls(upstream))
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(post, own_gateway, plain)
        stream = pool.submit(post, own_gateway, {**plain, "stream": True})
        # The backend logs a stream when it begins, the other request when it ends.
        eventually(lambda: any(call["sent"] >= 2 for call in calls(upstream)[before:]))
        with no_room(own_gateway):
            eventually(lambda: httpx.get(own_gateway.url + "/readyz").status_code == 503)
            refused = eventually(lambda: post_refused(own_gateway, plain))
            assert refused.json()["error"]["code"] == "usage_log_unavailable"
            assert refused.headers["retry-after"]
            # Both go through at the backend; what is not durable is not shown as whole.
            eventually(lambda: [call["sent"] for call in calls(upstream)[before:]] == [5, 5])
            # Requests that come later are answered while both are held back.
            for _ in range(3):
                assert post(own_gateway, plain).status_code == 503
            assert not answer.done()
            assert not stream.done()
        assert answer.result(60).status_code == 200
        assert stream.result(60).text.endswith("data: [DONE]\n\n")
    eventually(lambda: httpx.get(own_gateway.url + "/readyz").status_code == 200)
    assert {event.status for event in control_plane.wait_events(2)} == {"ok"}


def calls(upstream: str) -> list[dict[str, Any]]:
    log: list[dict[str, Any]] = httpx.get(upstream + "/log").json()
    return log


def post_refused(gateway: GatewayProcess, body: dict[str, Any]) -> httpx.Response | None:
    answer = post(gateway, body)
    return answer if answer.status_code == 503 else None


@contextmanager
def valkey(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    folder.mkdir()
    server = subprocess.Popen(server_command(port=port, folder=folder), stdout=subprocess.DEVNULL)
    try:
        with redis.Redis(port=port) as client:
            eventually(lambda: answers(client))
        yield server
    finally:
        stop(server)


def answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.exceptions.ConnectionError:
        return False


@pytest.mark.costly("starts a gateway and a Valkey of its own")
def test_routes_too_old_are_refused_and_a_stop_without_redis_ends(
    own_gateway: GatewayProcess, tmp_path: Path, upstream: str
) -> None:
    port = free_port()
    own_gateway.redis_url = f"redis://127.0.0.1:{port}/0"
    own_gateway.environ["GRAFTWORK_GATEWAY_STALE_SECONDS"] = "3"
    plain = {"model": "bot", "messages": ask(tokens=1)}
    with valkey(tmp_path / "valkey", port) as server:
        with redis.Redis(port=port) as client:
            ControlPlane(client).publish(route_table(upstream))
        own_gateway.start()
        server.kill()
        server.wait()
        assert post(own_gateway, plain).status_code == 200, "a short absence is waited out"
        refused = eventually(lambda: post_refused(own_gateway, plain))
        assert refused.json()["error"]["code"] == "routes_unavailable"
        assert refused.headers["retry-after"]
    assert own_gateway.process is not None
    own_gateway.process.terminate()
    assert own_gateway.process.wait(60) == 0


@pytest.mark.costly("two gateway processes")
def test_two_processes_lose_nothing(
    own_gateway: GatewayProcess, control_plane: ControlPlane, upstream: str
) -> None:
    control_plane.publish(route_table(upstream))
    own_gateway.environ["GRAFTWORK_GATEWAY_PROCESSES"] = "2"
    own_gateway.start()
    eventually(lambda: sorted(path.name for path in own_gateway.wal_dir.iterdir()) == ["000", "001"])
    # Each connection reaches one of both at random: thirty answers come from both.
    url = own_gateway.url + "/readyz"
    eventually(lambda: all(httpx.get(url).status_code == 200 for _ in range(30)))
    body = {"model": "bot", "messages": ask(tokens=1)}
    replies: list[httpx.Response] = []

    def both_served() -> bool:
        replies.extend(pool.map(lambda _: post(own_gateway, body), range(30)))
        used = [b"event_id" in path.read_bytes() for path in own_gateway.wal_dir.glob("*/*.wal")]
        return sum(used) == 2

    with ThreadPoolExecutor(8) as pool:
        eventually(both_served)
    assert {answer.status_code for answer in replies} == {200}
    events = control_plane.wait_events(len(replies))
    assert {event.request_id for event in events} == {answer.headers["x-request-id"] for answer in replies}


def test_an_abandoned_log_is_shipped(
    own_gateway: GatewayProcess, control_plane: ControlPlane, upstream: str
) -> None:
    control_plane.publish(route_table(upstream))
    left = Slot.hold(own_gateway.wal_dir / "007")
    assert left is not None
    log = Wal(left)
    event = UsageEvent(
        event_id="e",
        tenant="acme",
        project="",
        key_id="k1",
        request_id="left",
        attempt=1,
        requested_model="bot",
        alias="",
        arm="",
        adapter="",
        base_model="base",
        operation="chat",
        backend="worker",
        endpoint="c",
        status="ok",
        error_code="",
        prompt_tokens=1,
        cached_tokens=0,
        completion_tokens=2,
        reasoning_tokens=0,
        images=0,
        estimated=False,
        ttft_ms=None,
        itl_ms=None,
        duration_ms=1.5,
        started_at=control_plane.since,
        gateway_id="gone",
    )
    log.append(CLOSED, orjson.dumps(event))
    log.close()
    control_plane.client.hset(GATEWAYS, left.id, "{}")
    own_gateway.start()
    [shipped] = control_plane.wait_events(1)
    assert shipped == event
    assert list(left.folder.glob("*.wal")), "its event is not in the database yet"
    control_plane.client.xtrim(USAGE_STREAM, maxlen=0, approximate=False)
    # Shipped and ingested whole, it is not opened again every minute.
    eventually(lambda: not list(left.folder.glob("*.wal")))
    assert not control_plane.client.hexists(GATEWAYS, left.id), "nothing of it is missed"


def test_abandoned_logs_wait_for_room(
    redis_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        settings = Settings(redis_url=redis_url, fleet_token="t", wal_dir=tmp_path / "w")
        resources = Resources(settings, Authorizer(settings.trusted_proxies))
        resources.start()
        left = Slot.hold(tmp_path / "w" / "007")
        assert left is not None
        Wal(left).close()
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
        try:
            async with asyncio.timeout(60):
                while "cannot be opened for shipping" not in caplog.text:  # noqa: ASYNC110 - a log has no event
                    await asyncio.sleep(0.01)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        free = Slot.hold(tmp_path / "w" / "007")
        assert free is not None, "the slot was given back"
        free.release()
        assert not [task for task in resources.health.tasks if task.done()]
        await resources.close()

    asyncio.run(work())


@pytest.mark.costly("starts several gateways")
def test_background_work_that_dies_makes_the_gateway_unready(
    own_gateway: GatewayProcess, control_plane: ControlPlane, upstream: str
) -> None:
    control_plane.publish(route_table(upstream))
    own_gateway.start()
    # An unforeseen error: a version that is not a number.
    control_plane.client.set(ROUTES_VERSION, "nonsense")
    url = own_gateway.url + "/readyz"
    eventually(lambda: httpx.get(url).status_code == 503)
    assert httpx.get(url).json()["reasons"] == ["The route feed has ended; restart the gateway."]
    assert "invalid literal" in own_gateway.log.read_text()


def test_an_openai_server_gets_its_own_key_and_the_adapter_by_name(
    own_gateway: GatewayProcess, control_plane: ControlPlane, upstream: str
) -> None:
    control_plane.publish(route_table(upstream, kind="openai_http"))
    own_gateway.environ["GRAFTWORK_OPENAI_HTTP_KEY"] = "theirs"
    own_gateway.start()
    body = {"model": "bot", "messages": ask(tokens=2)}
    answer = post(own_gateway, body)
    assert answer.json()["model"] == "bot"
    request_id = answer.headers["x-request-id"]
    [seen] = [item for item in httpx.get(upstream + "/log").json() if item["id"] == request_id]
    assert seen["key"] == "Bearer theirs"
    assert seen["body"] == {
        "model": reference("acme", "bot").name,
        "messages": body["messages"],
        "cache_salt": "aa11",
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    streamed = post(own_gateway, {**body, "stream": True})
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert {event.completion_tokens for event in control_plane.wait_events(2)} == {2}
