"""Steps launched before the last one's tokens are read: clients see nothing of it, and no page is lost.

The CPU computes a step when it is launched; what is tested is what the host knows and decides one step late.
"""

from __future__ import annotations

import random
from collections.abc import Sequence as Items
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.worker_engine.conftest import EngineFactory, drain, request, tokens
from tests.worker_engine.graph_case import build_engine, load_adapters
from worker_engine.adapters.adapter import Adapter
from worker_engine.engine import Engine
from worker_engine.memory_pool import MemoryPool
from worker_engine.protocol import FinishReason, GenerateRequest, Grammar, GrammarKind, Origin, TokenDelta

Work = list[tuple[GenerateRequest, Adapter | None]]
PAGE_GIB = 2 * 3 * 2 * 16 * 12 * 4 / 2**30


@pytest.fixture(scope="module")
def adapters(
    tiny_model: Path, tiny_adapters: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> list[Adapter | None]:
    return [None, *load_adapters(tiny_model, tiny_adapters, tmp_path_factory.mktemp("cache")).values()]


OPTIONS: list[dict[str, Any]] = [
    {},
    {"ignore_eos": False},
    {"temperature": 1.0, "seed": 3, "top_p": 0.9},
    {"temperature": 0.7, "seed": 8, "logprobs": 3},
    {"temperature": 1.5, "seed": 5, "stop": ("a", "7")},
    {"temperature": 1.0, "seed": 6, "stop_token_ids": tuple(range(100, 160))},
    {"temperature": 1.0, "seed": 2, "presence_penalty": 1.0, "repetition_penalty": 1.3},
    {"min_tokens": 7, "ignore_eos": False, "logit_bias": ((255, 30.0),)},
    {"bad_words": ((5, 6), (7,)), "temperature": 1.0, "seed": 1},
    {"grammar": Grammar(GrammarKind.REGEX, "[ab]{3,9}c"), "ignore_eos": False, "temperature": 1.0, "seed": 4},
]


def workload(seed: int, count: int, adapters: Items[Adapter | None]) -> Work:
    """Requests of every kind; some prompts begin alike."""
    draw = random.Random(seed)
    shared = [draw.randrange(250) for _ in range(50)]
    work: Work = []
    for index in range(count):
        own = [draw.randrange(250) for _ in range(draw.randrange(1, 60))]
        prompt = shared[: draw.choice((0, 0, 20, 50))] + own
        options = draw.choice(OPTIONS)
        made = request(str(index), prompt, draw.choice((1, 2, 3, 17, 40)), **options)
        work.append((replace(made, origin=Origin(tenant=draw.choice("xyz"))), draw.choice(adapters)))
    return work


def check_pages(engine: Engine) -> None:
    """Every page that a launched step writes is held, and is in its sequence's page list."""
    for launched in engine._in_flight:
        for chunk in launched.chunks:
            assert chunk.sequence.pages
            assert all(engine.pool.holders(page) for page in chunk.sequence.pages)


def serve(engine: Engine, work: Work, seed: int, gone: Items[str] = ()) -> dict[str, list[TokenDelta]]:
    """Adds the requests at steps of chance; hangs up on those in `gone` after their third token."""
    draw, waiting = random.Random(seed), list(work)
    deltas: dict[str, list[TokenDelta]] = {}
    while waiting or not engine.idle:
        while waiting and draw.random() < 0.4:
            engine.add_request(*waiting.pop(0))
        for delta in engine.step():
            heard = deltas.setdefault(delta.request_id, [])
            assert not heard or heard[-1].finish_reason is None, "a delta after the last one"
            heard.append(delta)
        for name in gone:
            if len(deltas.get(name, ())) == 3:
                engine.abort(name)
        check_pages(engine)
    return deltas


def assert_same(heard: Items[TokenDelta], expected: Items[TokenDelta], name: str) -> None:
    """Compare the client's view and usage, not timing. Log-probabilities depend on the batch's rounding."""
    assert client_view(heard) == client_view(expected), name
    logprobs, wanted = (
        [told.logprob for delta in deltas for told in delta.logprobs] for deltas in (heard, expected)
    )
    assert logprobs == pytest.approx(wanted, abs=1e-4), name


def client_view(deltas: Items[TokenDelta]) -> tuple[object, ...]:
    """The client's view of the deltas, without the values of log-probabilities."""
    last = deltas[-1]
    usage = (last.prompt_tokens, last.completion_tokens, last.finish_reason, last.error)
    named = [
        (told.token_id, tuple(token for token, _ in told.top)) for delta in deltas for told in delta.logprobs
    ]
    return tokens(deltas), "".join(delta.text for delta in deltas), named, usage


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("pages", [600, 16], ids=["roomy", "preempting"])
@pytest.mark.costly("compares whole loads")
def test_clients_see_the_same(
    seed: int, pages: int, tiny_model: Path, adapters: list[Adapter | None], make_engine: EngineFactory
) -> None:
    """Adapters take pages too: where memory is short they are left out, so that requests are preempted."""
    chosen = adapters if pages > 100 else [None]
    work = workload(seed, 30, chosen)
    gone = ("4", "9", "17")
    heard = {}
    for overlap in ("off", "on"):
        engine = make_engine(tiny_model, overlap=overlap, memory_gib=pages * PAGE_GIB, max_num_seqs=6)
        heard[overlap] = serve(engine, work, seed, gone)
        assert engine.pool.num_used == 0
        assert not engine._in_flight
        if pages < 100:
            assert engine.scheduler.num_preemptions
    assert heard["on"].keys() == heard["off"].keys()
    for name, deltas in heard["off"].items():
        if name in gone and deltas[-1].finish_reason is None:
            assert tokens(heard["on"][name])[:3] == tokens(deltas)[:3]
        else:
            assert_same(heard["on"][name], deltas, name)


def test_counters_are_the_same(tiny_model: Path, make_engine: EngineFactory) -> None:
    """Rows too many are neither counted nor timed."""
    figures = []
    for overlap in ("off", "on"):
        engine = make_engine(tiny_model, overlap=overlap)
        serve(engine, workload(1, 20, [None]), 1)
        latencies = engine.latencies
        figures.append(
            (engine.num_generated_tokens, latencies.itl.count, latencies.ttft.count, engine.num_prompt_tokens)
        )
    assert figures[0] == figures[1]


def test_a_step_is_launched_before_the_last_ones_tokens_are_read(
    tiny_model: Path, make_engine: EngineFactory
) -> None:
    engine = make_engine(tiny_model, overlap="on")
    engine.add_request(request("a", range(20), 10), None)
    assert engine.step() == []
    assert len(engine._in_flight) == 1
    assert [delta.completion_tokens for delta in engine.step()] == [1]
    (sequence,) = engine.scheduler.running
    assert (sequence.num_computed, len(sequence.token_ids), sequence.num_pending_tokens) == (21, 21, 1)


def test_the_last_token_by_length_costs_no_row(tiny_model: Path, make_engine: EngineFactory) -> None:
    """The end is known in advance, so nothing is computed past the context's end either."""
    engine = make_engine(tiny_model, overlap="on", max_model_len=30)
    engine.add_request(request("a", range(20), 10), None)
    rows = 0
    while not engine.idle:
        engine.step()
        rows += sum(chunk.count for chunk in engine._in_flight[-1].chunks) if engine._in_flight else 0
    assert engine.num_generated_tokens == 10
    assert rows == 29


def test_a_grammar_drains_the_pipeline(tiny_model: Path, make_engine: EngineFactory) -> None:
    """Its mask needs the previous token: no step is launched ahead of it, and other requests continue."""
    engine = make_engine(tiny_model, overlap="on")
    regex = Grammar(GrammarKind.REGEX, "[ab]{5}")
    engine.add_request(request("a", range(20), 30, grammar=regex, ignore_eos=False), None)
    engine.add_request(request("b", range(30), 12), None)
    deltas: dict[str, list[TokenDelta]] = {"a": [], "b": []}
    while not engine.idle:
        for delta in engine.step():
            deltas[delta.request_id].append(delta)
        if len(deltas["a"]) and deltas["a"][-1].finish_reason is None:
            assert len(engine._in_flight) < 2
    assert len("".join(delta.text for delta in deltas["a"])) == 5
    assert len(tokens(deltas["b"])) == 12


def test_pages_of_a_sequence_that_ended_wait_for_the_row_too_many(
    tiny_model: Path, make_engine: EngineFactory
) -> None:
    engine = make_engine(tiny_model, overlap="on")
    engine.add_request(request("a", range(20), 50), None)
    for _ in range(4):
        engine.step()
    (sequence,) = engine.scheduler.running
    held = list(sequence.pages)
    engine.abort("a")
    assert not engine.scheduler.running
    assert all(engine.pool.holders(page) for page in held)
    assert len(engine._in_flight) == 1
    assert engine.step() == []
    assert engine.idle
    assert engine.pool.num_used == 0


def test_cached_prefixes_are_the_same(tiny_model: Path, make_engine: EngineFactory) -> None:
    """One after another: what a request left in the prefix cache does not depend on the overlap."""
    found = []
    for overlap in ("off", "on"):
        engine, cached = make_engine(tiny_model, overlap=overlap), []
        for length in (12, 13, 14, 28, 29, 30):
            engine.add_request(request("first", range(20), length), None)
            first = tokens(drain(engine)["first"])
            engine.add_request(request("again", [*range(20), *first, 9], 3), None)
            cached.append(drain(engine)["again"][-1].cached_tokens)
        found.append(cached)
    assert found[0] == found[1]
    assert max(found[0]) == 48


def test_deadlines_end_requests_with_a_row_in_flight(tiny_model: Path, make_engine: EngineFactory) -> None:
    engine = make_engine(tiny_model, overlap="on")
    now = [0.0]
    engine._clock = engine.scheduler._clock = lambda: now[0]
    late = replace(request("late", range(20), 200), origin=Origin(timeout=5.0))
    engine.add_request(late, None)
    engine.add_request(request("other", range(30), 30), None)
    deltas: dict[str, list[TokenDelta]] = {"late": [], "other": []}
    while not engine.idle:
        now[0] += 1.0
        for delta in engine.step():
            deltas[delta.request_id].append(delta)
        check_pages(engine)
    assert deltas["late"][-1].finish_reason is FinishReason.TIMEOUT
    assert deltas["late"][-1].completion_tokens == len(tokens(deltas["late"])) > 0
    assert len(tokens(deltas["other"])) == 30
    assert engine.pool.num_used == 0


def test_a_step_that_fails_leaves_nothing_behind(
    tiny_model: Path, make_engine: EngineFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At launch, with another step in flight; what comes afterwards is served."""
    engine = make_engine(tiny_model, overlap="on")
    engine.add_request(request("a", range(20), 10), None)
    expected = tokens(drain(engine)["a"])
    engine.add_request(request("b", range(20), 10), None)
    for _ in range(3):
        engine.step()
    run = engine._runner.run
    monkeypatch.setattr(engine._runner, "run", lambda *_: (_ for _ in ()).throw(RuntimeError("broken")))
    with pytest.raises(RuntimeError, match="broken"):
        engine.step()
    assert [delta.finish_reason for delta in engine.fail_all("broken")] == [FinishReason.ERROR]
    assert engine.idle
    assert engine.pool.num_used == 0
    monkeypatch.setattr(engine._runner, "run", run)
    engine.add_request(request("c", range(20), 10), None)
    assert tokens(drain(engine)["c"]) == expected


def test_with_replayed_steps(tiny_model: Path, adapters: list[Adapter | None]) -> None:
    """Recordings take their token ids from the device as well."""
    work = workload(7, 24, adapters[:4])
    plain = serve(build_engine(tiny_model, replays=False, max_num_seqs=6), work, 2)
    engine = build_engine(tiny_model, replays=True, overlap="on", max_num_seqs=6)
    replayed = serve(engine, work, 2)
    assert engine.graphs is not None
    assert engine.graphs.num_replays > 20
    assert replayed.keys() == plain.keys()
    for name, deltas in plain.items():
        assert_same(replayed[name], deltas, name)


def test_pages_go_round_under_overlap(
    tiny_model: Path, make_engine: EngineFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that a launched step may write is not reallocated before the step ends."""
    engine = make_engine(tiny_model, overlap="on", memory_gib=30 * PAGE_GIB, max_num_seqs=6)
    allocate = MemoryPool.allocate

    def checked(pool: MemoryPool, count: int) -> list[int]:
        pages = allocate(pool, count)
        written = {
            page
            for launched in engine._in_flight
            for chunk in launched.chunks
            for page in chunk.sequence.pages
        }
        assert not written & set(pages)
        return pages

    monkeypatch.setattr(MemoryPool, "allocate", checked)
    serve(engine, workload(3, 40, [None]), 3, gone=[str(index) for index in range(0, 40, 3)])
    assert engine.pool.num_used == 0
