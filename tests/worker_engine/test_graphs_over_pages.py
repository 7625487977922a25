"""All that a GPU adds at once, on the CPU: replayed steps, a step in flight, adapters that arrive in pages.

Copies are done when they are waited for and no sooner. The plain engine has none of this.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.worker_engine.conftest import drain, request, tokens
from tests.worker_engine.graph_case import build_engine, load_adapters
from tests.worker_engine.late_copies import delay, tier_of
from tests.worker_engine.test_overlap import PAGE_GIB, serve, workload
from tests.worker_engine.tiny_adapter import make_adapter
from worker_engine import model_runner
from worker_engine.adapters.adapter import Adapter
from worker_engine.engine import Engine

PAGES = 44


@pytest.fixture(scope="module")
def adapters(
    tiny_model: Path, tiny_adapters: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Adapter]:
    """Ranks 1 to 64, 1 to 27 pages; one adapter that no graph supports."""
    dora = tmp_path_factory.mktemp("dora")
    make_adapter(tiny_model, dora, seed=9, r=4, target_modules=["q_proj", "o_proj"], use_dora=True)
    return load_adapters(tiny_model, tiny_adapters | {"dora": dora}, tmp_path_factory.mktemp("cache"))


@pytest.fixture
def lent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_runner, "adapters_in_pages", lambda device: True)


def build(model: Path, **config: Any) -> Engine:
    options: dict[str, Any] = {"overlap": "on", "max_num_seqs": 6}
    return build_engine(model, replays=True, **(options | config))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.costly("compares whole loads")
def test_tokens_are_those_of_the_plain_engine(
    seed: int, tiny_model: Path, adapters: dict[str, Adapter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mixed requests, hang-ups, more adapters than fit into memory, preempted sequences."""
    # Few DoRA adapters: no graph supports them, and a step with one is not replayed.
    often = [adapters[name] for name in ("narrow", "plain", "all", "rslora")]
    work = workload(seed, 36, [None, *often, *often, adapters["dora"]])
    gone = ("4", "9", "17")
    plain = serve(build_engine(tiny_model, replays=False, max_num_seqs=6), work, seed, gone)
    monkeypatch.setattr(model_runner, "adapters_in_pages", lambda device: True)
    engine = build(tiny_model, memory_gib=PAGES * PAGE_GIB, max_adapters_per_batch=3)
    stream = delay(engine)
    heard = serve(engine, work, seed, gone)
    assert heard.keys() == plain.keys()
    for name, deltas in plain.items():
        if name in gone:
            assert tokens(heard[name])[:3] == tokens(deltas)[:3], name
        else:
            assert tokens(heard[name]) == tokens(deltas), name
            assert heard[name][-1].finish_reason is deltas[-1].finish_reason
    assert engine.graphs is not None
    assert engine.graphs.num_replays > 5
    assert tier_of(engine).num_loads > len(adapters), "adapters did not come and go"
    assert stream.done > 0
    assert engine.pool.num_used == 0


@pytest.mark.usefixtures("lent")
@pytest.mark.parametrize("name", ["all", "narrow"])
def test_a_replay_waits_for_weights_that_are_on_their_way(
    name: str, tiny_model: Path, adapters: dict[str, Adapter]
) -> None:
    """A prompt found in the prefix cache but for its last token is a decode step at once."""
    engine = build(tiny_model)
    adapter, held = adapters[name], engine.scheduler.adapters
    engine.add_request(request("first", range(33), 8), adapter)
    expected = tokens(drain(engine)["first"])
    pages = list(engine.pool.unpark(adapter.sha256))
    held._forget(adapter.sha256)
    engine.pool.free(pages)
    tier_of(engine).memory[pages] = float("nan")
    stream = delay(engine)
    assert engine.graphs is not None
    replays = engine.graphs.num_replays
    engine.add_request(request("again", range(33), 8), adapter)
    engine.step()
    assert engine.graphs.num_replays == replays + 1
    assert stream.done > 0
    assert tokens(drain(engine)["again"]) == expected


@pytest.mark.usefixtures("lent")
def test_a_step_in_flight_keeps_its_adapters_pages(tiny_model: Path, adapters: dict[str, Adapter]) -> None:
    """A hang-up while a launched step reads them: the pages are not reused before it has run."""
    engine = build(tiny_model)
    engine.add_request(request("a", range(20), 50), adapters["all"])
    for _ in range(3):
        engine.step()
    pages = engine.scheduler.adapters.active_pages()[0]
    engine.abort("a")
    assert len(engine._in_flight) == 1
    assert all(engine.pool.holders(page) for page in pages)
    assert not set(pages) & set(engine.pool.allocate(engine.pool.num_free))
    drain(engine)
    assert not any(engine.pool.holders(page) for page in pages)


@pytest.mark.usefixtures("lent")
def test_an_engine_started_again_says_the_same(tiny_model: Path, adapters: dict[str, Adapter]) -> None:
    """After an engine that was closed in the middle of its work."""
    found = []
    for closed in (True, False):
        engine = build(tiny_model)
        stream = delay(engine)
        for index, owner in enumerate((adapters["all"], None, adapters["plain"])):
            engine.add_request(request(str(index), range(20 + index), 12), owner)
        if closed:
            for _ in range(4):
                engine.step()
            engine.close()
            assert not stream.queue
        else:
            found.append({name: tokens(deltas) for name, deltas in drain(engine).items()})
    plain = build_engine(tiny_model, replays=False)
    for index, owner in enumerate((adapters["all"], None, adapters["plain"])):
        plain.add_request(request(str(index), range(20 + index), 12), owner)
    assert {name: tokens(deltas) for name, deltas in drain(plain).items()} == found[0]
