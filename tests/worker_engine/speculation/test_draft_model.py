"""A smaller model's guesses: its own pool, in step with each sequence, and refused where tokens differ."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.worker_engine.conftest import EngineFactory, drain, request, tokens
from tests.worker_engine.graph_case import load_adapters
from tests.worker_engine.speculation.conftest import accepted, eager
from tests.worker_engine.test_overlap import PAGE_GIB, assert_same, serve, workload
from tests.worker_engine.tiny_model import write_model
from worker_engine.adapters.adapter import Adapter
from worker_engine.engine import Engine
from worker_engine.errors import ConfigError
from worker_engine.speculation.draft_model import DraftModel


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One layer, another width; the same tokens."""
    changes: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    return write_model(tmp_path_factory.mktemp("small"), seed=11, **changes)


def drafting(
    make_engine: EngineFactory, model: Path, draft: Path, **changes: Any
) -> tuple[Engine, DraftModel]:
    values = {"speculation": "draft", "draft_model": draft, "draft_memory_gib": 0.02}
    engine = eager(make_engine(model, **(values | changes)))
    assert engine.speculator is not None
    proposer = engine.speculator._proposer
    assert isinstance(proposer, DraftModel)
    return engine, proposer


def adapters_of(model: Path, folders: dict[str, Path], cache: Path) -> list[Adapter | None]:
    return [None, *load_adapters(model, folders, cache).values()]


@pytest.mark.parametrize("itself", [True, False], ids=["itself", "another"])
@pytest.mark.parametrize("pages", [600, 12], ids=["roomy", "preempting"])
@pytest.mark.costly("compares whole loads")
def test_clients_see_the_same(
    itself: bool,
    pages: int,
    tiny_model: Path,
    small_model: Path,
    tiny_adapters: dict[str, Path],
    make_engine: EngineFactory,
    tmp_path: Path,
) -> None:
    adapters = adapters_of(tiny_model, tiny_adapters, tmp_path) if pages > 100 else [None]
    config = {"memory_gib": pages * PAGE_GIB, "max_num_seqs": 6, "max_num_batched_tokens": 40}
    work = workload(5, 24, adapters)
    expected = serve(make_engine(tiny_model, **config), work, 5)
    engine, proposer = drafting(make_engine, tiny_model, tiny_model if itself else small_model, **config)
    gone = ("4", "9")
    heard = serve(engine, work, 5, gone)
    for name, deltas in expected.items():
        if name in gone and heard[name][-1].finish_reason is None:
            assert tokens(heard[name]) == tokens(deltas)[: len(tokens(heard[name]))]
        else:
            assert_same(heard[name], deltas, name)
    assert engine.pool.num_used == proposer.num_pages_used == 0
    assert not proposer._shadows
    proposed, kept = accepted(engine)
    assert proposed > 50
    # It guesses the base's draws; what adapters, penalties and grammars change makes it err.
    assert kept > 0.15 * proposed if itself else kept < 0.15 * proposed


@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 0.9, "seed": 4, "top_p": 0.9}], ids=["greedy", "drawn"]
)
def test_a_model_guesses_itself_right(
    sampling: dict[str, Any], tiny_model: Path, make_engine: EngineFactory
) -> None:
    """With the sequence's own random numbers: where the distributions are the same, so are the draws."""
    engine, _ = drafting(make_engine, tiny_model, tiny_model)
    engine.add_request(request("a", range(30), 60, **sampling), None)
    assert len(tokens(drain(engine)["a"])) == 60
    proposed, kept = accepted(engine)
    assert kept == proposed >= 50
    steps = 1 + 60 - kept
    assert steps <= 9


def test_without_room_there_is_no_guess(tiny_model: Path, make_engine: EngineFactory) -> None:
    """The draft's pool holds less than one sequence; another, later, fits."""
    engine, proposer = drafting(make_engine, tiny_model, tiny_model, draft_memory_gib=3.5 * PAGE_GIB)
    engine.add_request(request("long", range(60), 30), None)
    assert len(tokens(drain(engine)["long"])) == 30
    assert accepted(engine) == (0, 0)
    engine.add_request(request("short", range(10), 20), None)
    assert len(tokens(drain(engine)["short"])) == 20
    assert accepted(engine)[1] > 10
    assert proposer.num_pages_used == 0


def test_pages_of_requests_set_back_go_to_those_that_run(
    tiny_model: Path, make_engine: EngineFactory
) -> None:
    """Random comings and goings in a draft pool that is too small for all: no page is lost."""
    engine, proposer = drafting(
        make_engine, tiny_model, tiny_model, draft_memory_gib=9 * PAGE_GIB, memory_gib=14 * PAGE_GIB
    )
    draw, waiting, told = random.Random(1), list(range(30)), 0
    while waiting or not engine.idle:
        while waiting and draw.random() < 0.3:
            name = waiting.pop(0)
            prompt = [draw.randrange(250) for _ in range(draw.randrange(1, 60))]
            engine.add_request(request(str(name), prompt, draw.randrange(1, 40)), None)
        told += sum(len(delta.token_ids) for delta in engine.step())
        if draw.random() < 0.05:
            engine.abort(str(draw.randrange(30)))
        held = [page for shadow in proposer._shadows.values() for page in shadow.own.pages]
        assert len(held) == len(set(held)) == proposer.num_pages_used
    assert told
    assert proposer.num_pages_used == 0


def test_another_vocabulary_is_refused(tiny_model: Path, make_engine: EngineFactory, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny_model, other)
    path = other / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    a, b = list(vocabulary)[:2]
    vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]
    path.write_text(json.dumps(tokenizer))
    with pytest.raises(ConfigError, match=r"another vocabulary: .* is token . there"):
        drafting(make_engine, tiny_model, other)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speculation": "draft"}, "--draft-model"),
        ({"draft_model": Path("x")}, "--speculation draft"),
        ({"speculation": "magic"}, "--speculation must be off, ngram or draft"),
        ({"speculation": "ngram", "overlap": "on"}, "--overlap on"),
        ({"speculation": "ngram", "speculation_tokens": 0}, "--speculation-tokens must be positive"),
    ],
)
def test_what_makes_no_sense_is_refused(
    changes: dict[str, Any], message: str, tiny_model: Path, make_engine: EngineFactory
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_engine(tiny_model, **changes)
