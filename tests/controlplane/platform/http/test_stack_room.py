"""Calls within a request open no chunk of their own, wherever their frames lie."""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable

import pytest
from django.http import HttpRequest, HttpResponse

from controlplane.platform.http.stack_room import StackRoomMiddleware

DEPTHS = range(250)
CALLS = 2_000


def _leaf(number: int) -> int:
    return number + 1


def _loop(depth: int) -> None:
    """Calls a small function again and again, `depth` frames below."""
    if depth:
        return _loop(depth - 1)
    for number in range(CALLS):
        _leaf(number)
    return None


def _worst(run: Callable[[int], object]) -> int:
    """Page faults of the depth that had the most, in a fresh thread each."""
    faults: list[int] = []

    def measured(depth: int) -> None:
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        run(depth)
        faults.append(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)

    for depth in DEPTHS:
        thread = threading.Thread(target=measured, args=(depth,))
        thread.start()
        thread.join()
    return max(faults)


def test_no_depth_costs_a_page_fault_for_each_call() -> None:
    def handled(depth: int) -> HttpResponse:
        def view(request: HttpRequest) -> HttpResponse:
            _loop(depth)
            return HttpResponse()

        return StackRoomMiddleware(view)(HttpRequest())  # type: ignore[return-value]

    if _worst(_loop) < CALLS:
        pytest.skip("this Python keeps its chunks, so nothing needs room")
    assert _worst(handled) < CALLS / 10
