"""The room where requests wait for the first copy of a base model: its bounds, and the way out of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from typing import Any, cast

import pytest

from contracts.base_routes import BaseRoute
from contracts.demand import demand_key
from contracts.route_table import RouteTable
from gateway.api.dialect import ApiDialect
from gateway.api.schema import COMPLETIONS, Call
from gateway.errors import Waking
from gateway.multi_adapter import MultiAdapter
from gateway.request_context import RequestContext
from gateway.request_preparer import RequestPreparer
from gateway.routing import Resolution, resolve
from gateway.routing.waiting_room import BYTES, WaitingRoom
from tests.gateway.conftest import ControlPlane, GatewayProcess, request_context, route_table
from tests.gateway.test_app import ask, post
from tests.waiting import eventually


def asleep(fallbacks: tuple[str, ...] = ()) -> RouteTable:
    """A table whose only base model has no copy; `bot` falls back to `fallbacks`."""
    table = route_table()
    bot = replace(table.adapters["acme"]["bot"], fallbacks={"": fallbacks})
    return replace(
        table,
        bases={"base": BaseRoute("base", 2048, (), hold_seconds=30)},
        adapters={**table.adapters, "acme": {"bot": bot}},
    )


@pytest.fixture
def clients() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def wait_held(control_plane: ControlPlane) -> bytes:
    """Wait until the gateway holds a request for `base`; return the demand that it reports."""
    told = eventually(lambda: cast(dict[bytes, bytes], control_plane.client.hgetall(demand_key("base"))))
    [word] = told.values()
    return word


def test_what_can_only_fall_back_to_nothing_is_held(
    pooled_gateway: GatewayProcess, control_plane: ControlPlane, upstream: str, clients: ThreadPoolExecutor
) -> None:
    version = control_plane.replace(pooled_gateway, asleep(("bot@v2", "base", "unknown")))
    asked = clients.submit(post, pooled_gateway, {"model": "bot", "messages": ask(tokens=1)})
    wait_held(control_plane)
    assert not asked.done()
    awake = replace(route_table(upstream).bases["base"], hold_seconds=30)
    control_plane.change(version + 1, "bases/base", awake)
    assert asked.result(60).headers["x-graftwork-served-model"] == "bot@v1"


def test_a_call_with_several_adapters_waits_in_one_place(
    pooled_gateway: GatewayProcess, control_plane: ControlPlane, upstream: str, clients: ThreadPoolExecutor
) -> None:
    """Each prompt in a place of its own would fill the room, of which a tenant gets a part."""
    version = control_plane.replace(pooled_gateway, asleep())
    call = {"model": "base", "prompt": ['{"tokens": 1}'] * 64, "adapters": ["bot", "base"] * 32}
    asked = clients.submit(post, pooled_gateway, call, path="completions")
    assert wait_held(control_plane).startswith(b"1")
    control_plane.change(version + 1, "bases/base", route_table(upstream).bases["base"])
    answer = asked.result(60)
    assert (answer.status_code, len(answer.json()["choices"])) == (200, 64)
    assert answer.json()["usage"]["completion_tokens"] == 64


def test_the_prompts_of_a_call_share_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call whose first prompt has used up the time does not wait again for its second."""
    now = [100.0]
    monkeypatch.setattr("gateway.multi_adapter.perf_counter", lambda: now[0])
    waits: list[float] = []

    class Preparer(RequestPreparer):
        def __init__(self) -> None:
            pass

        def resolve(self, context: RequestContext, subject: str) -> None:
            context.models = (resolve(asleep(), "acme", context.call.model),)

        def refresh(self, context: RequestContext, subject: str) -> None:
            pass

        async def admit_all(self, context: RequestContext, parts: Sequence[RequestContext]) -> None:
            for part in parts:
                part.ticket = context.ticket

        async def hold(
            self, context: RequestContext, models: Sequence[Resolution], *, waited: float = 0.0
        ) -> bool:
            waits.append(waited)
            now[0] += 20
            if waited >= models[0].route.hold_seconds:
                raise WaitingRoom.waking("base")
            return True

    unused = cast(Any, None)
    prompts = {"prompt": ["a", "b", "c"]}
    call = Call(COMPLETIONS, "base", False, unused, prompts, adapters=("bot", "bot", "base"))
    context = request_context(ApiDialect(call), resolve(asleep(), "acme", "base"))
    context.watch = unused
    with pytest.raises(Waking):
        asyncio.run(MultiAdapter(Preparer(), unused, unused, unused, unused).serve(context, "r1"))
    assert waits == [0.0, 20.0, 40.0]


@pytest.mark.parametrize(("waited", "over"), [(0.0, False), (30.0, True)])
def test_a_request_waits_for_what_is_left_of_its_time(waited: float, over: bool) -> None:
    class Feed:
        def current(self) -> RouteTable:
            return route_table("http://a")

    room = WaitingRoom(cast(Any, Feed()), cast(Any, None), most=4)
    waiting = room.copies(resolve(asleep(), "acme", "base"), "acme", 1, waited=waited)
    with pytest.raises(Waking) if over else nullcontext():
        asyncio.run(waiting)


@pytest.mark.parametrize(("path", "status"), [("keys/k1", 401), ("bases/base", 404)])
def test_who_has_waited_is_looked_up_again(
    pooled_gateway: GatewayProcess,
    control_plane: ControlPlane,
    upstream: str,
    clients: ThreadPoolExecutor,
    path: str,
    status: int,
) -> None:
    """A held request is refused as soon as its key is revoked or its base model is removed."""
    version = control_plane.replace(pooled_gateway, asleep())
    asked = clients.submit(post, pooled_gateway, {"model": "base", "messages": ask(tokens=1)})
    wait_held(control_plane)
    assert not asked.done()
    control_plane.change(version + 1, path, None)
    if path == "keys/k1":
        control_plane.change(version + 2, "bases/base", route_table(upstream).bases["base"])
    # A request that waited to the end of its hold would be refused with 503.
    assert asked.result(60).status_code == status


def test_demand_is_dated_by_redis(
    own_gateway: GatewayProcess, control_plane: ControlPlane, clients: ThreadPoolExecutor, upstream: str
) -> None:
    """Whatever the gateway's clock says: this one's is an hour late."""
    own_gateway.command = [
        own_gateway.command[0],
        "-c",
        "import time; real = time.time; time.time = lambda: real() - 3600\n"
        "import runpy; runpy.run_module('gateway', run_name='__main__', alter_sys=True)",
    ]
    control_plane.publish(asleep())
    own_gateway.start()
    asked = clients.submit(post, own_gateway, {"model": "base", "messages": ask(tokens=1)})
    word = wait_held(control_plane)
    held, _, at = word.partition(b" ")
    now = control_plane.client.time()[0]
    assert held == b"1"
    assert abs(float(at) - now) < 30
    control_plane.change(2, "bases/base", None)
    asked.result(10)


class Room:
    """Places that are taken and not given back."""

    def __init__(self, stack: ExitStack, most: int) -> None:
        self._stack = stack
        self._room = WaitingRoom(cast(Any, None), cast(Any, None), most=most)

    def takes(self, base: str, tenant: str, size: int = 1) -> bool:
        try:
            self._stack.enter_context(self._room.place(base, tenant, size, 9))
        except Waking:
            return False
        return True


@pytest.fixture
def room() -> Iterator[Room]:
    with ExitStack() as stack:
        yield Room(stack, 8)


def test_a_tenant_leaves_room_for_others(room: Room) -> None:
    assert [room.takes("a", "loud") for _ in range(8)].count(True) == 6
    assert [room.takes("a", "other") for _ in range(4)].count(True) == 2


def test_all_bases_together_are_bounded(room: Room) -> None:
    taken = [room.takes(f"base{n % 10}", f"tenant{n % 7}") for n in range(200)]
    assert taken.count(True) == 32


def test_bodies_are_bounded_in_bytes(room: Room) -> None:
    mib = 1 << 20
    most = BYTES // mib
    taken = [room.takes(f"base{n % 40}", f"tenant{n % 9}", 8 * mib) for n in range(100)]
    assert taken.count(True) == most // 8
    assert not room.takes("small", "new", 1)


def test_places_are_given_back() -> None:
    room = WaitingRoom(cast(Any, None), cast(Any, None), most=1)
    for _ in range(9):
        with room.place("a", "t", BYTES // 2, 9):
            assert room.held == 1
    assert room.held == 0
