"""Components without copies: who waits for one, who asks it, and who does not have to."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from contracts.keys import KeyRoute
from tests.gateway.backends.conftest import Walk
from tests.waiting import eventually

pytestmark = pytest.mark.costly("starts gateways of its own")


def sleep(walk: Walk, *, copies: int = 0) -> None:
    """The endpoint `sleepy` has so many copies."""
    components = {"base": {"container": walk.local.container, "copies": copies}}
    walk.local.put("endpoints/sleepy", {"components": components})


def called(walk: Walk) -> int:
    """Invocations of the endpoint `sleepy` so far."""
    told: list[dict[str, Any]] = walk.local.get("invocations")
    return sum(item["endpoint"] == "sleepy" for item in told)


def version(walk: Walk) -> int:
    return int(httpx.get(walk.gateway.url + "/readyz").json()["routes_version"])


@pytest.fixture
def clients() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


def test_of_many_that_wait_one_asks_and_a_throttle_ends_nothing(
    walk: Walk, clients: ThreadPoolExecutor
) -> None:
    sleep(walk)
    first = clients.submit(walk.post, model="sleepy", max_tokens=1)
    before = eventually(lambda: called(walk))
    asked = [clients.submit(walk.post, model="sleepy", max_tokens=1, stream=True) for _ in range(11)]
    # Waiting requests retry every few seconds: only one of them may call the endpoint.
    time.sleep(6)
    # Each newcomer may ask once before it knows; without turns these were thirty more.
    assert 1 <= called(walk) - before <= 11
    for fault in ("throttle", "unavailable", "not_ready"):
        walk.local.fault(fault, endpoint="sleepy", count=2)
        # A retry meets the fault in this time; no request may end.
        time.sleep(3)
    assert not any(answer.done() for answer in (first, *asked))
    walk.local.put("faults", [])
    sleep(walk, copies=1)
    assert {answer.result().status_code for answer in (first, *asked)} == {200}


def test_nobody_waits_while_another_copy_may_answer(walk: Walk) -> None:
    sleep(walk)
    before = called(walk)
    for _ in range(12):
        # One that waited would not be answered before the client gives up.
        assert walk.post(model="both", max_tokens=1).status_code == 200
    assert called(walk) - before <= 2, "it rests"


def test_what_falls_back_to_the_same_sleeping_base_is_held(walk: Walk, clients: ThreadPoolExecutor) -> None:
    sleep(walk)
    before = called(walk)
    asked = clients.submit(walk.post, model="bot-sleepy", max_tokens=1)
    eventually(lambda: called(walk) >= before + 2)
    assert not asked.done()
    sleep(walk, copies=1)
    assert asked.result().status_code == 200


@pytest.mark.parametrize(("path", "entry", "status"), [("keys/k1", None, 401), ("bases/sleepy", None, 503)])
def test_who_waits_is_looked_up_again(
    walk: Walk, clients: ThreadPoolExecutor, path: str, entry: KeyRoute | None, status: int
) -> None:
    sleep(walk)
    before = called(walk)
    asked: Future[httpx.Response] = clients.submit(walk.post, model="sleepy", max_tokens=1)
    eventually(lambda: called(walk) > before)
    assert not asked.done()
    walk.control_plane.change(version(walk) + 1, path, entry)
    assert asked.result().status_code == status
