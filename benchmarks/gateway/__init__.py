"""The gateway's cost: against its ceiling and other gateways, at half its capacity, and with 5,000 streams.

README.md describes each target's features and where other programs are searched.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figure import Figure
from benchmarks.gateway import closed_loop, many_streams, memory, open_loop
from benchmarks.gateway.peers import PEERS
from benchmarks.gateway.targets import direct, disk, gateway, memory_disk, passthrough


def run(*, quick: bool = False) -> Iterator[Figure]:
    """Measure every target and yield the figures; `quick` leaves out the long stream and memory tests."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=disk())))
        backend = direct(stack)
        targets = {
            "direct": backend,
            "ceiling": passthrough(stack, backend.url),
            "own ceiling": passthrough(stack, backend.url, own_server=True),
            "gateway": gateway(stack, folder, backend.url),
        }
        for peer in PEERS:
            if (program := peer.program()) is not None:
                targets[peer.name] = peer.start(stack, program, folder, backend.url)
        measured = closed_loop.rounds(targets)
        yield from closed_loop.figures(measured)
        beside = {"direct to the backend": backend}
        if memory_disk() is not None:
            unsynced = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=memory_disk())))
            beside["the gateway with its log in memory"] = gateway(stack, unsynced, backend.url)
        yield from open_loop.figures(targets["gateway"], measured["gateway"].requests, beside)
    if not quick:
        yield from many_streams.figures()
        yield from memory.figures()
