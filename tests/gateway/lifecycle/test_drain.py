"""A gateway that is told to stop: streams end in time, or are cut and told so; all is billed and shipped."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from redis.asyncio import Redis

from contracts.usage_event import part_id
from gateway.api.sse import event_data
from gateway.errors import Stopping
from gateway.lifecycle.drain import Drain
from gateway.lifecycle.health import Health
from gateway.routing.route_feed import RouteFeed
from gateway.usage.wal import Wal
from gateway.usage.wal_slots import Slot
from tests.gateway import virtual_time
from tests.gateway.conftest import ACME, ControlPlane, GatewayProcess, route_table
from tests.gateway.test_app import ask, post
from tests.waiting import eventually

pytestmark = pytest.mark.costly("starts gateways of its own")

BOUND = 1


@pytest.fixture
def stopping(own_gateway: GatewayProcess, control_plane: ControlPlane, upstream: str) -> GatewayProcess:
    """A gateway whose requests have a second to end."""
    control_plane.publish(route_table(upstream))
    own_gateway.environ["GRAFTWORK_GATEWAY_DRAIN_SECONDS"] = str(BOUND)
    own_gateway.start()
    return own_gateway


def streamed(upstream: str, *, tokens: int = 1) -> int:
    """To how many requests of all tests the backend has sent `tokens`."""
    return sum(item["sent"] >= tokens for item in httpx.get(upstream + "/log").json())


def wait_streamed(upstream: str, count: int, *, tokens: int = 1) -> None:
    """Waits until the backend has sent `tokens` to `count` requests of all tests."""
    eventually(lambda: streamed(upstream, tokens=tokens) >= count)


def terminate(gateway: GatewayProcess) -> None:
    assert gateway.process is not None
    gateway.process.terminate()


def ended(gateway: GatewayProcess) -> str:
    """The log of a gateway that has ended by itself."""
    assert gateway.process is not None
    assert gateway.process.wait(60) == 0
    log = gateway.log.read_text()
    assert "refused to gracefully stop" not in log
    return log


def sse(answer: httpx.Response) -> list[Any]:
    return [json.loads(data) for data in event_data(answer.content)]


def body(**plan: Any) -> dict[str, Any]:
    return {"model": "bot", "stream": True, "messages": ask(**plan)}


def test_streams_end_and_nobody_new_is_served(
    own_gateway: GatewayProcess, control_plane: ControlPlane, upstream: str
) -> None:
    control_plane.publish(route_table(upstream))
    stopping = own_gateway
    stopping.start()
    url, headers = stopping.url + "/v1/chat/completions", {"authorization": f"Bearer {ACME}"}
    with httpx.Client() as api, httpx.Client() as other:
        assert other.get(stopping.url + "/healthz").status_code == 200
        with api.stream("POST", url, json=body(tokens=100, delay=0.02), headers=headers) as answer:
            lines = (line for line in answer.iter_lines() if line)
            next(lines)
            terminate(stopping)
            # The connection that was kept is closed, a new one is refused.
            eventually(lambda: refuses(stopping))
            assert stopping.process is not None
            assert stopping.process.poll() is None, "its stream goes on"
            with pytest.raises(httpx.TransportError):
                other.get(stopping.url + "/readyz")
            assert list(lines)[-1] == "data: [DONE]"
    ended(stopping)
    [event] = control_plane.events()
    assert (event.status, event.completion_tokens) == ("ok", 100)


def refuses(gateway: GatewayProcess) -> bool:
    try:
        socket.create_connection(("127.0.0.1", gateway.port), timeout=1).close()
    except ConnectionRefusedError:
        return True
    return False


def test_what_does_not_end_is_cut_told_so_and_billed(
    stopping: GatewayProcess, control_plane: ControlPlane, upstream: str
) -> None:
    endless: dict[str, Any] = {"tokens": 3000, "delay": 0.01}
    before = streamed(upstream)
    response = {"model": "bot", "stream": True, "input": ask(**endless)[0]["content"]}
    with ThreadPoolExecutor() as pool:
        chat = pool.submit(post, stopping, body(**endless))
        responses = pool.submit(post, stopping, response, path="responses")
        kept = pool.submit(post, stopping, body(**endless), **{"idempotency-key": "k"})
        whole = pool.submit(post, stopping, {**body(**endless), "stream": False})
        wait_streamed(upstream, before + 3)
        eventually(
            lambda: [item["sent"] > 30 for item in httpx.get(upstream + "/log").json()[-3:]] == [True] * 3
        )
        terminate(stopping)
        log = ended(stopping)
    for answer in (chat.result(), kept.result()):
        *chunks, last = sse(answer)
        assert last["error"]["code"] == "gateway_stopping"
        assert len(chunks) > 20
    assert responses.result().text.rpartition("event: ")[2].startswith("response.failed\n")
    assert (whole.result().status_code, whole.result().headers["retry-after"]) == (503, "1")
    assert whole.result().json()["error"]["code"] == "gateway_stopping"
    # Told by the process itself, before it ended.
    events = control_plane.events()
    assert [(event.status, event.error_code) for event in events] == [("interrupted", "shutdown")] * 4
    billed = {event.request_id: event.completion_tokens for event in events}
    for answer in (chat.result(), kept.result()):
        assert billed[answer.headers["x-request-id"]] >= len(sse(answer)) - 1
    assert billed[whole.result().headers["x-request-id"]] == 0
    assert "Traceback" not in log


def test_a_call_with_several_adapters_is_cut_as_one(
    stopping: GatewayProcess, control_plane: ControlPlane, upstream: str
) -> None:
    endless = json.dumps({"tokens": 3000, "delay": 0.01})
    called = {"model": "base", "prompt": [endless] * 2, "adapters": ["bot", "base"]}
    before = streamed(upstream, tokens=30)
    with ThreadPoolExecutor() as pool:
        stream = pool.submit(post, stopping, {**called, "stream": True}, path="completions")
        whole = pool.submit(post, stopping, called, path="completions")
        wait_streamed(upstream, before + 4, tokens=30)
        terminate(stopping)
        log = ended(stopping)
    *chunks, last = sse(stream.result())
    assert last["error"]["code"] == "gateway_stopping"
    assert {chunk["choices"][0]["index"] for chunk in chunks} == {0, 1}
    assert (whole.result().status_code, whole.result().json()["error"]["code"]) == (503, "gateway_stopping")
    events = {event.request_id: event for event in control_plane.events()}
    assert {(event.status, event.error_code) for event in events.values()} == {("interrupted", "shutdown")}
    for index in (0, 1):
        shown = sum(chunk["choices"][0]["index"] == index for chunk in chunks)
        assert events[part_id(stream.result().headers["x-request-id"], index)].completion_tokens >= shown > 20
        assert events[part_id(whole.result().headers["x-request-id"], index)].completion_tokens == 0
    assert "Traceback" not in log


def test_half_a_request_and_a_client_that_does_not_read_hold_nothing_back(
    stopping: GatewayProcess, control_plane: ControlPlane, upstream: str
) -> None:
    before = streamed(upstream, tokens=1000)
    text = json.dumps(body(tokens=100_000, delay=0.00001)).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer " + ACME.encode()
    with socket.socket() as deaf, socket.create_connection(("127.0.0.1", stopping.port)) as half:
        half.sendall(head)
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", stopping.port))
        deaf.sendall(head + b"\r\ncontent-length: %d\r\n\r\n" % len(text) + text)
        # Far more than the client's kernel takes unread.
        wait_streamed(upstream, before + 1, tokens=1000)
        terminate(stopping)
        ended(stopping)
    [event] = control_plane.events()
    assert (event.status, event.error_code) == ("interrupted", "shutdown")
    assert event.completion_tokens > 0


def test_a_client_that_leaves_meanwhile_is_billed(
    stopping: GatewayProcess, control_plane: ControlPlane, upstream: str
) -> None:
    before = streamed(upstream)
    text = json.dumps(body(tokens=3000, delay=0.01)).encode()
    with socket.create_connection(("127.0.0.1", stopping.port)) as client:
        client.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer "
            + ACME.encode()
            + b"\r\ncontent-length: %d\r\n\r\n" % len(text)
            + text
        )
        wait_streamed(upstream, before + 1)
        assert client.recv(100)
        terminate(stopping)
    ended(stopping)
    [event] = control_plane.events()
    assert event.status in ("cancelled", "interrupted")
    assert event.completion_tokens > 0


def test_many_signals_are_one(stopping: GatewayProcess, control_plane: ControlPlane, upstream: str) -> None:
    """The server hangs at its third; supervisors signal whole groups, and people press Ctrl-C again."""
    assert stopping.process is not None
    pid = stopping.process.pid
    [child] = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    assert os.getpgid(child) == child, "a terminal's Ctrl-C is for the parent alone"
    before = streamed(upstream)
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(post, stopping, body(tokens=60, delay=0.01))
        wait_streamed(upstream, before + 1)
        for _ in range(4):
            os.kill(pid, signal.SIGINT)
            os.kill(child, signal.SIGTERM)
            time.sleep(0.02)
        assert answer.result().text.endswith("data: [DONE]\n\n")
    ended(stopping)
    assert [event.status for event in control_plane.events()] == ["ok"]


def test_a_request_that_comes_all_the_same_is_refused(tmp_path: Path, redis_url: str) -> None:
    async def work() -> dict[str, Any]:
        drain = Drain()
        drain.unregister(drain.register())
        drain.begin()
        with pytest.raises(Stopping) as caught:
            drain.register()
        assert (caught.value.status, caught.value.retry_after) == (503, 1)
        slot, redis = Slot.hold(tmp_path), Redis.from_url(redis_url)
        assert slot is not None
        wal = Wal(slot)
        status, told = Health(wal, RouteFeed(redis), drain).ready()
        assert status == 503
        wal.close()
        await redis.aclose()
        return cast("dict[str, Any]", told)

    assert "The gateway is shutting down." in asyncio.run(work())["reasons"]


def test_what_is_recorded_as_whole_is_not_cut() -> None:
    """Otherwise it would be billed, and its client told to retry."""

    async def work() -> list[str]:
        drain, ends = Drain(0.05), []

        async def request(*, recorded: bool) -> None:
            task = drain.register()
            try:
                if recorded:
                    drain.protect()
                # In virtual time, longer than the drain of 0.05 s.
                await asyncio.sleep(0.3)
                ends.append(f"recorded {recorded}: sent")
            except asyncio.CancelledError:
                assert drain.cut()
                ends.append(f"recorded {recorded}: cut")
            finally:
                drain.unregister(task)

        tasks = [asyncio.create_task(request(recorded=recorded)) for recorded in (True, False)]
        await asyncio.sleep(0)
        server = asyncio.get_running_loop().create_future()
        drain.begin()
        asyncio.get_running_loop().call_later(0.4, server.set_result, None)
        assert await drain.wait(server)
        await asyncio.gather(*tasks)
        return ends

    assert virtual_time.run(work()) == ["recorded False: cut", "recorded True: sent"]
