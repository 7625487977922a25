"""Replayed decode steps against the same steps launch by launch.

Here recordings run again over their fixed tensors with PyTorch's operations; `interpreted/` runs them with
the kernels that a captured CUDA graph launches. No recording has been replayed on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
import torch

from kernels.capture import Reruns
from kernels.lora.graph import GraphLora
from tests.worker_engine.conftest import request
from tests.worker_engine.graph_case import Run, build_engine, compare, load_adapters
from tests.worker_engine.tiny_adapter import make_adapter
from worker_engine.adapters.adapter import Adapter
from worker_engine.decode_graphs import KINDS, buckets
from worker_engine.engine import Engine

ROOT = Path(__file__).resolve().parents[2]
T = TypeVar("T")


def graphs(engine: Engine) -> tuple[int, int]:
    assert engine.graphs is not None
    return engine.graphs.num_replays, engine.graphs.num_refused


@pytest.fixture(scope="module")
def adapters(
    tiny_model: Path, tiny_adapters: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Adapter]:
    dora = tmp_path_factory.mktemp("dora")
    make_adapter(tiny_model, dora, seed=9, r=4, target_modules=["q_proj", "o_proj"], use_dora=True)
    return load_adapters(tiny_model, tiny_adapters | {"dora": dora}, tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (1, [1]),
        (3, [1, 2, 3]),
        (8, [1, 2, 4, 8]),
        (30, [1, 2, 4, 8, 16, 24, 30]),
        (64, [1, 2, 4, *range(8, 65, 8)]),
    ],
)
def test_buckets(most: int, expected: list[int]) -> None:
    assert buckets(most) == expected


def test_requests_that_come_and_go(tiny_model: Path, adapters: dict[str, Adapter]) -> None:
    """Base rows, adapters of rank 1 to 64 and of some modules, batches of every size, pages' borders."""
    chosen = [None, *(adapters[name] for name in ("narrow", "plain", "all", "rslora"))]
    runs = [Run(build_engine(tiny_model, replays=replays)) for replays in (False, True)]
    for run in runs:
        run.serve(chosen, 24, prompt=40, out=40)
    compare(*runs)
    replayed, refused = graphs(runs[1].engine)
    assert replayed > 40
    assert not refused
    assert {len(logits) for logits in runs[1].logits} > {1, 2, 3, 5, 7}


def test_what_recordings_cannot_take_runs_launch_by_launch(
    tiny_model: Path, adapters: dict[str, Adapter]
) -> None:
    """DoRA is in no graph, and ranks that differ by layer are refused; both run in batches with replays."""
    runs = [Run(build_engine(tiny_model, replays=replays)) for replays in (False, True)]
    for run in runs:
        run.serve([None, adapters["plain"]], 6, prompt=20, out=30)
    replayed, refused = graphs(runs[1].engine)
    assert replayed
    assert not refused
    for run in runs:
        run.serve([None, adapters["patterns"]], 6, prompt=20, out=30)
    assert graphs(runs[1].engine)[1] > 0
    for run in runs:
        run.serve([None, *map(adapters.get, ("plain", "dora", "patterns"))], 16, prompt=20, out=30)
    compare(*runs)


def test_base_rows_alone_run_no_adapters_launches(tiny_model: Path, adapters: dict[str, Adapter]) -> None:
    """Also right after adapters were served, and with them again."""
    runs = [Run(build_engine(tiny_model, replays=replays, max_num_seqs=2)) for replays in (False, True)]
    for run in runs:
        for adapter in (adapters["all"], None, adapters["rslora"], adapters["all"]):
            run.engine.add_request(request(f"r{len(run.logits)}", range(20), 20), adapter)
            while not run.engine.idle:
                run.step()
    compare(*runs)
    recorded = runs[1].engine.graphs
    assert recorded is not None
    every, _, none = KINDS
    assert set(recorded._recordings) == {(1, every), (1, none)}
    assert recorded._recordings[1, none].lora is None


def test_adapters_of_attention_alone_launch_nothing_in_mlps(
    tiny_model: Path, adapters: dict[str, Adapter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside base rows, and before and after adapters of all layers whose tables stay loaded."""
    launched: list[set[str]] = []
    apply = GraphLora.apply

    def noted(lora: GraphLora, layer: int, name: str, out: torch.Tensor, x: torch.Tensor) -> None:
        launched[-1].add(name)
        apply(lora, layer, name, out, x)

    monkeypatch.setattr(GraphLora, "apply", noted)
    runs = [Run(build_engine(tiny_model, replays=replays, max_num_seqs=2)) for replays in (False, True)]
    for run in runs:
        for chosen in (["narrow"], ["narrow", "all"], ["narrow"], ["narrow", None]):
            for name in chosen:
                adapter = None if name is None else adapters[name]
                run.engine.add_request(request(f"{len(run.logits)}-{name}", range(20), 20), adapter)
            launched.append(set())
            while not run.engine.idle:
                run.step()
    compare(*runs)
    every, attention, _ = map(set, KINDS)
    assert launched[:4] == [set()] * 4, "nothing is captured without replays"
    assert launched[4:] == [attention, every, attention, attention]


def test_padding_rows_leave_every_page_but_the_first_alone(tiny_model: Path) -> None:
    """A batch that shrinks within its size: the rows that ended are padding, not what they were."""
    engine = build_engine(tiny_model, replays=True, max_num_seqs=4)
    for index, length in enumerate((4, 9, 9, 30)):
        engine.add_request(request(str(index), range(index, index + 20), length), None)
    while len(engine.scheduler.running) != 3:
        engine.step()
    pages = engine._runner._cache._pages
    held = [page for sequence in engine.scheduler.running for page in sequence.pages]
    others = [page for page in range(1, pages.shape[3]) if page not in held]
    before = pages[:, :, :, others].clone()
    engine.step()
    assert torch.equal(pages[:, :, :, others], before)


def test_all_sizes_are_recorded_at_start(tiny_model: Path) -> None:
    engine = build_engine(tiny_model, replays=True, cuda_graphs="start", max_num_seqs=5)
    assert engine.graphs is not None
    assert set(engine.graphs._recordings) == {(rows, names) for rows in (1, 2, 4, 5) for names in KINDS}


class FailingCaptures:
    """Records some, and fails then, as a driver or a full device may."""

    def __init__(self, good: int) -> None:
        self.left = good

    def capture(self, function: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("operation not permitted when stream is capturing")
        return Reruns().capture(function)


class WrongCaptures:
    """Its replays write other values than the captured ones."""

    def capture(self, function: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        result = function()
        assert isinstance(result, torch.Tensor)

        def replay() -> None:
            result.mul_(1.1)

        return result, replay


def test_a_recording_that_replays_something_else_is_not_used(
    tiny_model: Path, adapters: dict[str, Adapter]
) -> None:
    eager = Run(build_engine(tiny_model, replays=False))
    wrong = Run(build_engine(tiny_model, replays=True, captures=WrongCaptures()))
    for run in (eager, wrong):
        run.serve([None, adapters["plain"]], 6, prompt=20, out=10)
    compare(eager, wrong)
    recorded = wrong.engine.graphs
    assert recorded is not None
    assert "differ from those of the step itself" in recorded.problem
    assert recorded.num_replays == 0


@pytest.mark.parametrize("when", ["start", "lazy"])
def test_steps_run_launch_by_launch_once_recording_has_failed(
    when: str, tiny_model: Path, adapters: dict[str, Adapter]
) -> None:
    chosen = [None, adapters["plain"], adapters["all"]]
    eager = Run(build_engine(tiny_model, replays=False))
    failing = Run(build_engine(tiny_model, replays=True, captures=FailingCaptures(2), cuda_graphs=when))
    for run in (eager, failing):
        run.serve(chosen, 12, prompt=20, out=20)
    compare(eager, failing)
    recorded = failing.engine.graphs
    assert recorded is not None
    assert "not permitted when stream is capturing" in recorded.problem
    assert (recorded.num_replays > 0) == (when == "lazy")
