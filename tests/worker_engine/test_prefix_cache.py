"""Cached prefixes: found by content alone, never across salts or adapters, equal to what is recomputed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker_engine.conftest import EngineFactory, drain, request, tokens
from tests.worker_engine.simulation import Simulation, adapter
from tests.worker_engine.tiny_adapter import adapter_ref
from worker_engine.adapters.loader import AdapterLoader
from worker_engine.config import PAGE_SIZE
from worker_engine.engine import Engine
from worker_engine.memory_pool import MemoryPool
from worker_engine.prefix_cache import HashChain, PrefixCache
from worker_engine.protocol import GenerateRequest, Origin

PROMPT = [index * 7 % 250 for index in range(5 * PAGE_SIZE + 3)]


def hashes(salt: str, sha256: str, token_ids: list[int]) -> list[bytes]:
    return HashChain(salt, sha256).extend(token_ids, len(token_ids) // PAGE_SIZE)


def test_a_hash_is_over_salt_adapter_and_all_tokens_before() -> None:
    first = hashes("s", "a", PROMPT)
    assert len(first) == len(set(first)) == 5
    assert hashes("s", "a", PROMPT[:40]) == first[:2]
    assert not set(hashes("t", "a", PROMPT)) & set(first)
    assert not set(hashes("s", "b", PROMPT)) & set(first)
    assert not set(hashes("", "sa", PROMPT)) & set(first)
    assert not set(hashes("sa", "", PROMPT)) & set(first)
    changed = hashes("s", "a", [9, *PROMPT[1:]])
    assert not set(changed) & set(first), "a page's hash must depend on the pages before it"
    same_start = hashes("s", "a", [*PROMPT[:PAGE_SIZE], 9, *PROMPT[PAGE_SIZE + 1 :]])
    assert same_start[0] == first[0]
    assert not set(same_start[1:]) & set(first)


def test_the_end_of_a_prefix_is_evicted_first() -> None:
    pool = MemoryPool(6)
    cache = PrefixCache(pool)
    chain = hashes("", "", PROMPT)
    pages = pool.allocate(5)
    for digest, page in zip(chain, pages, strict=True):
        cache.insert(digest, page)
    cache.release(pages)
    assert pool.num_used == 0
    pool.allocate(2)
    assert cache.acquire(chain) == pages[:3]
    assert len(cache) == 3


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(14, 60), st.integers(1, 6), st.integers(1, 3))
@pytest.mark.costly("a property over many runs")
def test_random_runs_share_only_what_is_equal(
    draw: random.Random, num_pages: int, rows: int, slots: int
) -> None:
    """Tenants, salts and adapters over few different prompts; some hang up, some time out, memory is short.

    The simulation compares every read with what a recomputation would have written, and counts holders.
    """
    run = Simulation(num_pages=num_pages, max_num_seqs=rows, budget=40, max_adapters=slots)
    adapters = [None, *(adapter(number, pages=number % 3 + 1) for number in range(4))]
    hits = 0
    for number in range(60):
        if len(run.live) < 12:
            prompt = [draw.randrange(2)] * (PAGE_SIZE * draw.randrange(3)) + [
                draw.randrange(2) for _ in range(draw.randrange(1, 30))
            ]
            run.add(
                str(number),
                prompt,
                draw.randrange(1, 60),
                uses=draw.choice(adapters),
                tenant=draw.choice("abc"),
                cache_salt=draw.choice(["", "x"]),
                priority=draw.randrange(3),
                timeout=draw.choice([None, None, 0.5]),
                tenant_weight=draw.choice([1.0, 2.0]),
            )
        for _ in range(draw.randrange(4)):
            if not run.scheduler.idle:
                run.step()
                run.check()
        if draw.random() < 0.1 and run.live:
            run.finish(draw.choice(list(run.live.values())))
            run.check()
        hits = run.scheduler.prefixes.num_hit_tokens
    run.run()
    run.check()
    assert run.pool.num_used == 0
    assert run.pool.num_free == run.pool.capacity
    assert hits <= run.scheduler.prefixes.num_queried_tokens


def test_the_last_token_is_always_computed() -> None:
    """A prompt that is cached as a whole still needs its last token's logits."""
    run = Simulation()
    prompt = PROMPT[: 4 * PAGE_SIZE]
    run.add("first", prompt, 20)
    run.run()
    again = run.add("again", prompt, 1)
    [chunk] = run.step()
    assert again.cached_tokens == 3 * PAGE_SIZE
    assert chunk.count == PAGE_SIZE
    longer = run.add("longer", [*prompt, 1], 1)
    [chunk] = run.step()
    assert longer.cached_tokens == 4 * PAGE_SIZE
    assert chunk.count == 1


def test_a_completion_is_a_prefix_of_the_next_turn() -> None:
    run = Simulation()
    first = run.add("first", PROMPT[:20], 60)
    run.run()
    second = run.add("second", [*first.token_ids, 1, 2, 3], 1)
    run.step()
    # The last sampled token was never computed, and what does not fill a page is not kept.
    assert second.cached_tokens == (len(first.token_ids) - 1) // PAGE_SIZE * PAGE_SIZE


def test_a_preempted_sequence_finds_its_pages_again() -> None:
    """Another tenant takes one of four rows: its victim recomputes less than a page when it comes back."""
    run = Simulation(max_num_seqs=4)
    flood = [run.add(str(number), [number] * 40, 100, tenant="flood") for number in range(4)]
    for _ in range(30):
        run.step()
    run.add("light", [9] * 20, 5, tenant="light")
    run.step()
    assert run.scheduler.num_preemptions == 1
    [victim] = [sequence for sequence in flood if sequence not in run.scheduler.running]
    chunks = []
    while victim not in run.scheduler.running:
        chunks = run.step()
        run.check()
    [count] = [chunk.count for chunk in chunks if chunk.sequence is victim]
    assert count == (len(victim.token_ids) - 1) % PAGE_SIZE, "one token has been sampled since"
    assert victim.cached_tokens == 0, "what it computed itself was not cached when it came"


def test_a_sequence_that_finds_no_room_holds_nothing() -> None:
    """Admission is tried at every step; each time it finds its prefix, and must release it."""
    run = Simulation(num_pages=7)
    run.add("first", PROMPT[:40], 8)
    run.step()
    second = run.add("second", [*PROMPT[:40], *range(60)], 5)
    for _ in range(3):
        run.step()
        run.check()
        assert second.admitted is None
    run.run()
    assert second.cached_tokens == 2 * PAGE_SIZE
    assert run.pool.num_used == 0


def salted(engine_request: GenerateRequest, salt: str) -> GenerateRequest:
    return GenerateRequest(
        engine_request.request_id,
        engine_request.prompt_token_ids,
        engine_request.sampling,
        engine_request.adapter,
        Origin(cache_salt=salt),
    )


@pytest.fixture
def logits_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs one request on an engine and returns the logits that its tokens were drawn from."""

    def run(engine: Engine, name: str, prompt: list[int], salt: str, uses: Any = None) -> Any:
        seen: list[torch.Tensor] = []
        inner = engine._runner.run

        def record(*arguments: Any) -> Any:
            logits, sampled = inner(*arguments)
            seen.append(logits.clone())
            return logits, sampled

        monkeypatch.setattr(engine._runner, "run", record)
        engine.add_request(salted(request(name, prompt, 12), salt), uses)
        deltas = drain(engine)[name]
        monkeypatch.setattr(engine._runner, "run", inner)
        return torch.cat(seen), tokens(deltas), deltas[-1].cached_tokens

    return run


@pytest.mark.parametrize("adapted", [False, True])
def test_cached_prefixes_give_the_logits_of_a_recomputation(
    adapted: bool,
    tiny_model: Path,
    tiny_adapters: dict[str, Path],
    make_engine: EngineFactory,
    logits_of: Any,
    tmp_path: Path,
) -> None:
    loader = AdapterLoader(
        tiny_model, tmp_path / "c", max_bytes=1 << 30, dtype=torch.float32, device=torch.device("cpu")
    )
    uses = loader.load(adapter_ref(tiny_adapters["all"])) if adapted else None
    engine = make_engine(tiny_model)
    fresh, expected, cached = logits_of(engine, "fresh", PROMPT, "s", uses)
    assert cached == 0
    hit, found, cached = logits_of(engine, "hit", PROMPT, "s", uses)
    assert cached == 5 * PAGE_SIZE
    assert found == expected
    # Other chunks of rows add in another order: fp32 rounding, and no more.
    assert torch.allclose(hit, fresh, atol=1e-4, rtol=1e-4)
    _, found, cached = logits_of(engine, "other salt", PROMPT, "t", uses)
    assert (found, cached) == (expected, 0)
    other = None if adapted else loader.load(adapter_ref(tiny_adapters["all"]))
    _, found, cached = logits_of(engine, "other adapter", PROMPT, "s", other)
    assert cached == 0
    assert found != expected
    assert engine.pool.num_used == 0


def test_evicted_pages_are_cleared_for_their_next_owner(
    tiny_model: Path, make_engine: EngineFactory, logits_of: Any
) -> None:
    """NaN in every free page reaches no later request: all pages are evicted in turn."""
    engine = make_engine(tiny_model, memory_gib=12 * 2 * 3 * 2 * 16 * 12 * 4 / 2**30)
    _, expected, _ = logits_of(engine, "first", PROMPT, "a")
    poison = torch.arange(1, engine.pool.capacity + 1)
    engine._runner._cache._pages[:, :, :, poison] = float("nan")
    for salt in "bcd":
        _, found, cached = logits_of(engine, salt, PROMPT, salt)
        assert (found, cached) == (expected, 0)
