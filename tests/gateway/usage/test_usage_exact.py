"""Usage of real gateways where it used to be lost: first tokens, stepped clocks, an emptied Redis."""

from __future__ import annotations

import json
import os
from pathlib import Path

import httpx
import pytest

from contracts.redis_names import USAGE_STREAM
from tests.gateway.conftest import ControlPlane, GatewayProcess, route_table
from tests.gateway.test_app import ask, post
from tests.gateway.test_faults import HEADERS, upstream_entry
from tests.waiting import eventually

pytestmark = pytest.mark.costly("starts gateways of its own")


def test_a_stream_killed_at_its_first_token_is_billed(
    own_gateway: GatewayProcess, control_plane: ControlPlane, upstream: str
) -> None:
    control_plane.publish(route_table(upstream))
    own_gateway.start()
    ids = []
    for _ in range(3):
        ids.append(killed_at_its_first_token(own_gateway))
        own_gateway.start()
    events = control_plane.wait_events(3)
    assert [event.request_id for event in events] == ids
    for event in events:
        assert (event.status, event.error_code) == ("interrupted", "gateway_died")
        assert 1 <= event.completion_tokens <= upstream_entry(upstream, event.request_id)["sent"]


def killed_at_its_first_token(gateway: GatewayProcess) -> str:
    """The id of a stream whose gateway dies when its client has seen a token."""
    body = {"model": "bot", "stream": True, "messages": ask(tokens=500, delay=0.05)}
    url = gateway.url + "/v1/chat/completions"
    with httpx.Client() as api, api.stream("POST", url, json=body, headers=HEADERS) as answer:
        # Held, for a generator that nobody holds ends, and hangs up.
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        gateway.kill()
        return str(answer.headers["x-request-id"])


_STEPPED = """
import os, time
_time, _time_ns, _file = time.time, time.time_ns, os.environ["CLOCK_STEP_FILE"]
def _step():
    with open(_file) as file:
        return int(file.read() or "0")
time.time = lambda: _time() + _step()
time.time_ns = lambda: _time_ns() + _step() * 1_000_000_000
"""


@pytest.fixture
def clock(own_gateway: GatewayProcess, tmp_path: Path) -> Path:
    """A file of seconds by which the gateway's wall clock is off; the kernel's own is the machine's."""
    folder = tmp_path / "clock"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_STEPPED)
    file = folder / "step"
    file.write_text("0")
    own_gateway.environ |= {"PYTHONPATH": str(folder), "CLOCK_STEP_FILE": str(file)}
    return file


def test_a_clock_that_steps_under_a_stream_changes_nothing_of_its_usage(
    own_gateway: GatewayProcess, control_plane: ControlPlane, upstream: str, clock: Path
) -> None:
    control_plane.publish(route_table(upstream))
    control_plane.since = 0
    own_gateway.start()
    body = {"model": "bot", "stream": True, "messages": ask(tokens=40, delay=0.03)}
    url = own_gateway.url + "/v1/chat/completions"
    steps = ["-7200", "3600", "172800", "0"]
    for step in steps:
        with httpx.Client() as api, api.stream("POST", url, json=body, headers=HEADERS) as answer:
            lines = answer.iter_lines()
            assert json.loads(next(lines).removeprefix("data: "))["choices"]
            aside = clock.with_suffix(".new")
            aside.write_text(step)
            os.replace(aside, clock)
            assert [line for line in lines if line][-1] == "data: [DONE]"
    own_gateway.kill()
    own_gateway.start()
    assert post(own_gateway, {"model": "bot", "messages": ask(tokens=1)}).status_code == 200
    events = control_plane.wait_events(5)
    assert [(event.status, event.completion_tokens) for event in events[:4]] == [("ok", 40)] * 4
    assert len({event.event_id for event in events}) == 5
    assert all(1_000 < event.duration_ms < 120_000 for event in events[:4])


def test_what_redis_lost_before_it_was_ingested_is_shipped_again(
    own_gateway: GatewayProcess, control_plane: ControlPlane, upstream: str
) -> None:
    control_plane.publish(route_table(upstream))
    own_gateway.start()
    body = {"model": "bot", "messages": ask(tokens=1)}
    ids = [post(own_gateway, body).headers["x-request-id"] for _ in range(5)]
    assert [event.request_id for event in control_plane.wait_events(5)] == ids
    control_plane.client.flushdb()
    # Nobody asks anything of the gateway in between.
    eventually(lambda: control_plane.client.xlen(USAGE_STREAM) == 5)
    assert sorted(event.request_id for event in control_plane.events()) == sorted(ids)
