"""Copies with faults on demand, for a gateway in front of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.gateway.routing.standin import ServerThread, StandIn


@pytest.fixture(scope="session")
def server_thread() -> Iterator[ServerThread]:
    thread = ServerThread()
    yield thread
    thread.close()


@pytest.fixture
def stand_ins(server_thread: ServerThread) -> Iterator[Callable[[int], list[StandIn]]]:
    """Starts that many copies."""
    started: list[StandIn] = []

    def start(number: int) -> list[StandIn]:
        copies = [StandIn(server_thread) for _ in range(number)]
        for copy in copies:
            copy.start()
            started.append(copy)
        return copies

    yield start
    for copy in started:
        copy.kill()
