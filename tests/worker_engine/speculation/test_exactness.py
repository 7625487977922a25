"""Whatever the drafts, clients get and pay for the same as without speculation, delta by delta."""

from __future__ import annotations

import random
from collections.abc import Sequence as Items
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.lora import LoraPair
from tests.worker_engine.conftest import EngineFactory, drain, request, tokens
from tests.worker_engine.graph_case import build_engine, load_adapters
from tests.worker_engine.speculation.conftest import MakeSpeculating, Prophet, accepted, eager, prophesying
from tests.worker_engine.test_overlap import PAGE_GIB, assert_same, serve, workload
from worker_engine.adapters.adapter import Adapter
from worker_engine.engine import Engine
from worker_engine.memory_pool import pages_for
from worker_engine.protocol import FinishReason, Grammar, GrammarKind, Origin, TokenDelta


@pytest.fixture(scope="module")
def adapters(
    tiny_model: Path, tiny_adapters: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> list[Adapter | None]:
    return [None, *load_adapters(tiny_model, tiny_adapters, tmp_path_factory.mktemp("cache")).values()]


def watch_pages(engine: Engine) -> None:
    """After each step a running sequence holds the pages of its tokens and no more."""
    step = engine.step

    def watched() -> list[TokenDelta]:
        deltas = step()
        for sequence in engine.scheduler.running:
            assert len(sequence.pages) <= pages_for(len(sequence.token_ids)), "pages of guesses are kept"
            assert sequence.num_computed < len(sequence.token_ids)
        known = set(engine.scheduler.prefixes._pages.values())
        assert len(known) == len(engine.scheduler.prefixes)
        return deltas

    engine.step = watched  # type: ignore[method-assign]


@pytest.mark.parametrize("share", [0.0, 0.6, 0.95, 1.0])
@pytest.mark.parametrize("pages", [600, 12], ids=["roomy", "preempting"])
@pytest.mark.costly("compares whole loads")
def test_clients_see_the_same(
    share: float, pages: int, tiny_model: Path, adapters: list[Adapter | None], make_engine: EngineFactory
) -> None:
    """Samplings of every kind, adapters, stops, grammars, hang-ups; guesses right never, often and always."""
    seed = 5 + int(share * 100)
    work = workload(seed, 30, adapters if pages > 100 else [None])
    config = {"memory_gib": pages * PAGE_GIB, "max_num_seqs": 6}
    plain = make_engine(tiny_model, **config)
    expected = serve(plain, work, seed)
    prophet = Prophet({name: tokens(deltas) for name, deltas in expected.items()}, share, seed)
    engine = prophesying(make_engine(tiny_model, speculation="ngram", **config), prophet)
    watch_pages(engine)
    gone = ("4", "9", "17")
    heard = serve(engine, work, seed, gone)
    assert engine.pool.num_used == 0
    assert heard.keys() == expected.keys()
    for name, deltas in expected.items():
        if name in gone and heard[name][-1].finish_reason is None:
            assert tokens(heard[name]) == tokens(deltas)[: len(tokens(heard[name]))]
        else:
            assert_same(heard[name], deltas, name)
            assert len(heard[name]) == len(deltas)
    proposed, kept = accepted(engine)
    assert proposed > 100
    assert kept == proposed if share == 1 else 0.9 * share**3 * proposed <= kept < proposed
    if pages < 100:
        assert engine.scheduler.num_preemptions
    # Pages cached in this run hold the final tokens, also where rejected drafts were written first.
    again = serve(engine, work, seed)
    for name, deltas in expected.items():
        assert tokens(again[name]) == tokens(deltas)


def test_guesses_keep_to_allowed_tokens(
    tiny_model: Path, make_engine: EngineFactory, make_speculating: MakeSpeculating
) -> None:
    heard = []
    for engine in (make_engine(tiny_model), make_speculating(tiny_model)):
        for temperature in (0.0, 0.8):
            allowed = {"allowed_token_ids": (97, 98, 99), "temperature": temperature, "seed": 3}
            engine.add_request(request(str(temperature), [97, 98, 99] * 5, 90, **allowed), None)
        heard.append({name: tokens(deltas) for name, deltas in drain(engine).items()})
    assert heard[0] == heard[1]
    assert all(set(told) <= {97, 98, 99} for told in heard[1].values())
    assert accepted(engine)[1] > 10


@pytest.mark.parametrize("seed", range(3))
def test_n_grams_change_nothing(
    seed: int,
    tiny_model: Path,
    adapters: list[Adapter | None],
    make_engine: EngineFactory,
    make_speculating: MakeSpeculating,
) -> None:
    """The real proposer, on repetitive answers of three letters, in batches with prompt chunks."""
    draw = random.Random(seed)
    work = []
    for asked, adapter in workload(seed, 24, adapters):
        few = tuple((token, 40.0) for token in draw.sample(range(97, 107), 3))
        sampling = asked.sampling if asked.sampling.grammar else replace(asked.sampling, logit_bias=few)
        work.append((replace(asked, sampling=sampling), adapter))
    heard: list[dict[str, list[TokenDelta]]] = []
    for engine in (
        make_engine(tiny_model, max_num_seqs=8, max_num_batched_tokens=24),
        make_speculating(tiny_model, max_num_seqs=8, max_num_batched_tokens=24),
    ):
        heard.append(serve(engine, work, seed))
        assert engine.pool.num_used == 0
    for name, deltas in heard[0].items():
        assert_same(heard[1][name], deltas, name)
    assert accepted(engine)[1] > 10
    assert engine.speculator is not None
    assert not engine.speculator._acceptance
    assert not engine.speculator._proposer._indices  # type: ignore[attr-defined]


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 8, 9, 30])
def test_never_a_token_too_many(max_tokens: int, tiny_model: Path, make_engine: EngineFactory) -> None:
    """Also if every draft is right and the context is full to its last token."""
    plain = make_engine(tiny_model)
    plain.add_request(request("a", range(20), 40), None)
    whole = tokens(drain(plain)["a"])
    engine = make_engine(tiny_model, speculation="ngram", max_model_len=20 + max_tokens)
    prophesying(engine, Prophet({"a": whole}, 1.0), most=8)
    engine.add_request(request("a", range(20), max_tokens), None)
    deltas = drain(engine)["a"]
    assert tokens(deltas) == whole[:max_tokens]
    assert [delta.completion_tokens for delta in deltas] == list(range(1, max_tokens + 1))
    assert deltas[-1].finish_reason is FinishReason.LENGTH
    assert engine.num_generated_tokens == max_tokens
    assert engine.latencies.itl.count == max_tokens - 1


def test_choices_of_one_request_go_their_own_ways(tiny_model: Path, make_engine: EngineFactory) -> None:
    heard = []
    for speculation in ("off", "ngram"):
        engine = make_engine(tiny_model, speculation=speculation)
        if engine.speculator is not None:
            eager(engine)
        for choice in range(4):
            asked = request(f"c{choice}", [1, 2, 3] * 8, 30, temperature=0.8, seed=5, choice=choice)
            engine.add_request(asked, None)
        heard.append({name: tokens(deltas) for name, deltas in drain(engine).items()})
    assert heard[0] == heard[1]
    assert len({tuple(told) for told in heard[0].values()}) == 4


def test_a_tenant_is_charged_what_it_gets(tiny_model: Path, make_engine: EngineFactory) -> None:
    """Wrong guesses are the worker's loss: the fair share counts tokens, as usage does."""
    served = []
    completions: dict[str, list[int]] = {}
    for share in (None, 0.0, 0.7, 1.0):
        engine = make_engine(tiny_model, speculation="off" if share is None else "ngram")
        if share is not None:
            prophesying(engine, Prophet(completions, share))
        for index, tenant in enumerate("xyy"):
            asked = request(str(index), range(index, index + 30), 33)
            engine.add_request(replace(asked, origin=Origin(tenant=tenant)), None)
        told = drain(engine)
        completions = {name: tokens(deltas) for name, deltas in told.items()}
        served.append({account.tenant: account.served for account in engine.scheduler.accounts})
    assert served[0] == served[1] == served[2] == served[3]


def test_non_finite_logits_behind_guesses_end_that_request_only(
    tiny_model: Path, make_engine: EngineFactory
) -> None:
    """The token after which the model overflows is guessed: in time where it comes, for nothing elsewhere."""
    engine = make_engine(tiny_model)
    engine.add_request(request("a", range(20), 30), None)
    engine.add_request(request("b", range(5, 40), 30), None)
    expected = {name: tokens(deltas) for name, deltas in drain(engine).items()}
    bad = next(t for t in expected["a"][4:] if t not in (*expected["b"], *expected["a"][:4], *range(40)))
    at = expected["a"].index(bad)
    engine = make_engine(tiny_model, speculation="ngram")
    engine._runner._model._embedding[bad] = float("nan")
    # "b" is told the poisoned token in place of its own, which is then no guess of its.
    wrong = [*expected["b"][:6], bad, *expected["b"][7:]]
    prophesying(engine, Prophet({"a": expected["a"], "b": wrong}, 1.0))
    engine.add_request(request("a", range(20), 30), None)
    engine.add_request(request("b", range(5, 40), 30), None)
    deltas = drain(engine)
    assert tokens(deltas["a"]) == expected["a"][: at + 1]
    assert deltas["a"][-1].finish_reason is FinishReason.ERROR
    assert "non-finite" in str(deltas["a"][-1].error)
    assert tokens(deltas["b"]) == expected["b"]
    assert engine.pool.num_used == 0


def test_an_adapter_that_overflows_ends_its_request_only(
    tiny_model: Path, make_speculating: MakeSpeculating
) -> None:
    engine = make_speculating(tiny_model)
    huge = LoraPair(torch.full((2, 72), 1e30), torch.full((2, 24), 1e30))
    adapter = Adapter("0" * 64, ({"v_proj": huge}, {}, {}), huge.nbytes)
    engine.add_request(request("bad", [1, 2] * 9, 20), adapter)
    engine.add_request(request("good", [1, 2] * 9, 20), None)
    deltas = drain(engine)
    assert deltas["bad"][-1].finish_reason is FinishReason.ERROR
    assert len(tokens(deltas["good"])) == 20


def test_guesses_stay_within_the_grammar(tiny_model: Path, make_engine: EngineFactory) -> None:
    """A right guess that ends the grammar, wrong ones that it forbids, and more behind its end."""
    grammar = Grammar(GrammarKind.REGEX, "(yes|no|maybe), [a-f]{2,4}!")
    sampling: dict[str, Any] = {"temperature": 1.5, "grammar": grammar, "ignore_eos": False}
    plain = make_engine(tiny_model)
    for index in range(12):
        plain.add_request(request(str(index), [1, 2, 3], 60, seed=index, **sampling), None)
    expected = drain(plain)
    for share in (1.0, 0.8):
        known = {name: [*tokens(deltas), 7, 7, 7] for name, deltas in expected.items()}
        engine = prophesying(make_engine(tiny_model, speculation="ngram"), Prophet(known, share))
        for index in range(12):
            engine.add_request(request(str(index), [1, 2, 3], 60, seed=index, **sampling), None)
        heard = drain(engine)
        for name, deltas in expected.items():
            assert_same(heard[name], deltas, name)
        assert accepted(engine)[1] > 40


def test_guesses_take_rows_and_pages_that_are_free(tiny_model: Path, make_engine: EngineFactory) -> None:
    """A pool for exactly two requests: no sequence is preempted for a draft."""
    plain = make_engine(tiny_model)
    work: Items[tuple[str, range]] = [("a", range(28)), ("b", range(40, 68))]
    for name, prompt in work:
        plain.add_request(request(name, prompt, 36), None)
    expected = {name: tokens(deltas) for name, deltas in drain(plain).items()}
    engine = make_engine(tiny_model, speculation="ngram", memory_gib=8.5 * PAGE_GIB)
    prophesying(engine, Prophet(expected, 1.0), most=30)
    rows: list[int] = []
    run = engine._runner.run

    def watched(chunks: Any, *others: Any) -> Any:
        rows.append(sum(chunk.count + len(chunk.drafts) for chunk in chunks))
        return run(chunks, *others)

    engine._runner.run = watched  # type: ignore[method-assign, assignment]
    for name, prompt in work:
        engine.add_request(request(name, prompt, 36), None)
    heard = {name: tokens(deltas) for name, deltas in drain(engine).items()}
    assert heard == expected
    assert engine.scheduler.num_preemptions == 0
    assert max(rows) <= engine.scheduler.max_tokens
    assert accepted(engine)[1] > 30


def test_recorded_decode_steps_take_guesses(tiny_model: Path, adapters: list[Adapter | None]) -> None:
    """A guess is a row like another: the recordings of so many rows replay it."""
    plain = build_engine(tiny_model, replays=False)
    engine = build_engine(tiny_model, replays=True, speculation="ngram")
    heard: list[dict[str, list[int]]] = []
    for one in (plain, engine):
        if one is engine:
            prophesying(engine, Prophet(heard[0], 0.8), most=2)
        for index, adapter in enumerate((None, *adapters[1:4])):
            one.add_request(request(str(index), range(index, index + 20), 40), adapter)
        heard.append({name: tokens(deltas) for name, deltas in drain(one).items()})
    assert heard[0] == heard[1]
    assert engine.graphs is not None
    assert engine.graphs.num_replays > 5
    assert accepted(engine)[1] > 40


def test_a_step_that_fails_leaves_nothing_behind(tiny_model: Path, make_speculating: MakeSpeculating) -> None:
    engine = make_speculating(tiny_model)
    engine.add_request(request("a", [1, 2, 3] * 7, 40), None)
    for _ in range(5):
        engine.step()
    run = engine._runner.run
    engine._runner.run = lambda *_: (_ for _ in ()).throw(RuntimeError("broken"))  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="broken"):
        engine.step()
    assert [delta.finish_reason for delta in engine.fail_all("broken")] == [FinishReason.ERROR]
    assert engine.pool.num_used == 0
    engine._runner.run = run  # type: ignore[method-assign]
    engine.add_request(request("b", [1, 2, 3] * 7, 40), None)
    assert len(tokens(drain(engine)["b"])) == 40
