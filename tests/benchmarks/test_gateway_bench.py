"""A small run of the gateway's benchmark: every part runs and reports plausible figures."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest

from benchmarks.gateway import closed_loop, many_streams, memory, open_loop
from benchmarks.gateway.targets import direct, gateway, passthrough

pytestmark = pytest.mark.slow


def test_the_loops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closed_loop, "ROUNDS", 1)
    monkeypatch.setattr(closed_loop, "SECONDS", 1)
    monkeypatch.setattr(open_loop, "ROUNDS", 1)
    monkeypatch.setattr(open_loop, "SECONDS", 1)
    monkeypatch.setattr(open_loop, "WARM_SECONDS", 0.5)
    with contextlib.ExitStack() as stack:
        backend = direct(stack)
        ours = gateway(stack, tmp_path, backend.url)
        ceiling = passthrough(stack, backend.url)
        own = passthrough(stack, backend.url, own_server=True)
        targets = {"direct": backend, "ceiling": ceiling, "own ceiling": own, "gateway": ours}
        measured = closed_loop.rounds(targets)
        found = {figure.metric: figure for figure in closed_loop.figures(measured)}
        (late,) = open_loop.figures(ours, 100, {"direct": backend})
        with pytest.raises(RuntimeError, match="no 200 with a length"):
            # Its answers have no length: a generator that waited for one would wait for ever.
            open_loop.exchanges_at(ceiling.url, 100)
    assert measured["direct"].requests > measured["ceiling"].requests > 0
    assert found["requests"].ratio == pytest.approx(
        measured["gateway"].requests / measured["ceiling"].requests, abs=0.001
    )
    assert found["CPU of a stream"].value > 0
    assert late.value > 0
    assert re.search(r"answers.*direct \d+\.\d+ ms", late.note)


def test_many_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("STREAMS", 40), ("EVENTS", 3), ("RAMP_SECONDS", 0.5)):
        monkeypatch.setattr(many_streams, name, value)
    used, stalled = many_streams.figures()
    assert "40 whole" in used.note
    assert used.value > 10
    assert stalled.value == 0


def test_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_TURN_SECONDS", 1)
    (figure,) = memory.figures(minutes=0.05)
    assert figure.ratio is not None
    assert 0.5 < figure.ratio < 2
