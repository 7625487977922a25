"""A request that ends a copy's engine ends no second one, and its successors go to other copies."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.gateway.conftest import ControlPlane, GatewayProcess, route_table
from tests.gateway.routing.conftest import server_thread, stand_ins
from tests.gateway.routing.standin import StandIn
from tests.gateway.test_app import post
from tests.gateway.test_dispatch import body, new_name

__all__ = ["server_thread", "stand_ins"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_ends_an_engine_is_sent_to_no_other_copy(
    stream: bool,
    pooled_gateway: GatewayProcess,
    control_plane: ControlPlane,
    stand_ins: Callable[[int], list[StandIn]],
) -> None:
    copies = stand_ins(3)
    for copy in copies:
        copy.behave(fault="engine_died")
    table = route_table(*(copy.url for copy in copies), kind="openai_http", name=new_name())
    control_plane.replace(pooled_gateway, table)
    answer = post(pooled_gateway, body(stream=stream))
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "engine_died")
    assert answer.headers["x-should-retry"] == "false", "a client library would end the next engine"
    assert "retry-after" not in answer.headers
    calls = [copy.calls() for copy in copies]
    assert sum(calls) == 1
    dead, *living = sorted(copies, key=lambda copy: -copy.calls())
    for copy in living:
        copy.behave()
    # The dead engine's server still refuses every request: no request is lost to it.
    assert all(post(pooled_gateway, body(stream=stream)).status_code == 200 for _ in range(8))
    assert dead.calls() == 1
    events = control_plane.wait_events(9)
    assert [event.attempt for event in events] == [1] * 9
    assert [event.error_code for event in events if event.status == "error"] == ["engine_died"]
