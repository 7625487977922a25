"""Compares all contenders over HTTP, scenario by scenario, in alternating rounds."""

from __future__ import annotations

import signal
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from benchmarks.engine.adapters import make_adapters
from benchmarks.engine.contender import Contender
from benchmarks.engine.graftwork import Graftwork
from benchmarks.engine.llama_cpp import LlamaCpp
from benchmarks.engine.streams import Round
from benchmarks.engine.vllm_cpu import VllmCpu
from benchmarks.engine.workload import QUICK, SCENARIOS, Request, Scenario, Workload
from benchmarks.figure import Figure, compared
from optimizer.measurement.rounds import percentile

PEERS: Final[tuple[type[Contender], ...]] = (LlamaCpp, VllmCpu)


def compare(model: Path, *, quick: bool) -> Iterator[Figure]:
    """Yield every scenario's figures as soon as they are known, ours against each installed peer.

    Raises:
        RuntimeError: a contender did not start, or returned other token counts than requested.
    """
    scenarios = [item for item in SCENARIOS if not quick or item.name in QUICK]
    kinds: list[type[Contender]] = [Graftwork, *(peer for peer in PEERS if peer.installed())]
    yield from _absent(kinds)
    with ExitStack() as stack:
        stack.enter_context(_ended_by_sigterm())
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="graftwork-bench-"))
        root = Path(folder)
        adapters = make_adapters(root / "adapters", max(item.adapters for item in scenarios))
        contenders: list[Contender] = []
        for kind in kinds:
            (scratch := root / kind.name).mkdir()
            contender = kind(model, adapters, scratch)
            stack.callback(contender.stop)
            contender.start()
            contenders.append(contender)
        workload = Workload(model)
        for contender in contenders:
            _warm_up(contender, workload.short(len(adapters)))
        for scenario in scenarios:
            rounds = _rounds(scenario, 1 if quick else scenario.rounds, workload, contenders)
            yield from _figures(scenario, rounds)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Make SIGTERM raise SystemExit, so that child processes end with this one."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _warm_up(contender: Contender, requests: Sequence[Request]) -> None:
    """Load what is loaded on first use, and check that adapters change the output."""
    answers, _ = contender.ask(requests, streams=8)
    base, *adapted = (answer.text for answer in answers)
    if base in adapted:
        raise RuntimeError(f"{contender.name} says the same with an adapter as without: {base!r}")


def _absent(present: Sequence[type[Contender]]) -> Iterator[Figure]:
    for peer in PEERS:
        if peer not in present:
            note = f"{peer.name} is absent: benchmarks/engine/README.md tells how to name it"
            yield Figure("engine", f"peer_{peer.name}", 0.0, "", note=note)


def _rounds(
    scenario: Scenario, count: int, workload: Workload, contenders: Sequence[Contender]
) -> dict[str, list[Round]]:
    rounds: dict[str, list[Round]] = {contender.name: [] for contender in contenders}
    for number in range(count):
        requests = workload.requests(scenario, number)
        # Reverse the order in every other round.
        for contender in contenders if number % 2 == 0 else reversed(contenders):
            answers, seconds = contender.ask(requests, streams=scenario.streams)
            rounds[contender.name].append(Round.from_streams(answers, seconds))
    return rounds


_METRICS: Final[tuple[tuple[str, str, Callable[[Round], float]], ...]] = (
    ("tokens_per_s", "token/s", lambda item: item.tokens_per_s),
    ("ttft_p50_ms", "ms", lambda item: percentile(item.ttft, 50) * 1e3),
    ("ttft_p99_ms", "ms", lambda item: percentile(item.ttft, 99) * 1e3),
    ("itl_p50_ms", "ms", lambda item: percentile(item.itl, 50) * 1e3),
    ("itl_p99_ms", "ms", lambda item: percentile(item.itl, 99) * 1e3),
)


def _figures(scenario: Scenario, rounds: Mapping[str, Sequence[Round]]) -> Iterator[Figure]:
    """Yield medians over the rounds, with the scenario's goal; TTFT has a goal against vLLM everywhere."""
    peers = [name for name in rounds if name != Graftwork.name]
    for metric, unit, read in _METRICS:
        values = {name: statistics.median(read(item) for item in each) for name, each in rounds.items()}
        name = f"{scenario.name}_{metric}"
        ours = values[Graftwork.name]
        if not peers:
            yield Figure("engine", name, round(ours, 3), unit)
        for peer in peers:
            speed = metric == "tokens_per_s"
            goal = scenario.goal if speed and (not scenario.goal_of or peer in scenario.goal_of) else None
            if metric == "ttft_p50_ms" and peer == VllmCpu.name:
                goal = 1.0
            yield compared(
                "engine",
                name,
                ours,
                unit,
                baseline=values[peer],
                goal=goal,
                less_is_better=not speed,
                note=f"beside {peer}",
            )
