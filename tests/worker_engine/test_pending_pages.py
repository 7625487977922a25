"""Concurrent prompts with a common prefix compute it once, and the wait for it is bounded."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.adapters.pooling import Pooling
from tests.worker_engine.conftest import EngineFactory, drain, request, tokens
from tests.worker_engine.simulation import Simulation, adapter
from worker_engine.config import PAGE_SIZE
from worker_engine.fairness import INPUT_WEIGHT, OUTPUT_WEIGHT
from worker_engine.pending_pages import MAX_HELD
from worker_engine.protocol import PoolingParams
from worker_engine.readers.pooling import Pooler

COMMON = [index * 7 % 250 for index in range(200)]
SHARED = 200 // PAGE_SIZE * PAGE_SIZE


def prefilled(run: Simulation) -> int:
    """Prompt tokens computed until nothing is left, of sequences that are not preempted any more."""
    count = 0
    for _ in range(10_000):
        if run.scheduler.idle:
            assert len(run.scheduler._pending) == 0
            return count
        chunks = run.step()
        run.check()
        assert chunks, "a step computed nothing although requests wait"
        count += sum(chunk.count for chunk in chunks if chunk.sequence.num_completion_tokens < 2)
    raise AssertionError("requests have not ended")


@pytest.mark.parametrize("budget", [40, 128, 2048])
def test_choices_of_one_prompt_compute_it_once(budget: int) -> None:
    run = Simulation(budget=budget)
    choices = [run.add(str(choice), COMMON, 5) for choice in range(4)]
    assert prefilled(run) == 200 + 3 * (200 - SHARED)
    assert [choice.cached_tokens for choice in choices] == [0, SHARED, SHARED, SHARED]


@pytest.mark.parametrize("budget", [40, 128, 2048])
def test_a_burst_with_one_system_prompt_computes_it_once(budget: int) -> None:
    run = Simulation(budget=budget)
    burst = [run.add(str(number), [*COMMON, *range(number, number + 20)], 5) for number in range(16)]
    assert prefilled(run) == 220 + 15 * (220 - SHARED)
    assert [item.cached_tokens for item in burst] == [0] + [SHARED] * 15


def test_who_leaves_the_common_way_goes_on_alone() -> None:
    """Each waits for what it shares and no longer: at the third page two ways part."""
    run = Simulation(budget=16)
    first = run.add("first", COMMON, 5, tenant="a")
    run.step()
    other = run.add("other", [*COMMON[: 2 * PAGE_SIZE], *range(60)], 5, tenant="b")
    run.step()
    assert other.admitted is None
    run.step()
    assert other in run.scheduler.running
    assert other.cached_tokens == 2 * PAGE_SIZE
    assert first.num_remaining > PAGE_SIZE
    prefilled(run)


@pytest.mark.parametrize("how", ["aborted", "preempted"])
def test_when_the_first_leaves_the_next_takes_over(how: str) -> None:
    run = Simulation(budget=64)
    first, second, third = [run.add(name, COMMON, 5) for name in ("first", "second", "third")]
    run.step()
    assert (second.admitted, third.admitted) == (None, None)
    if how == "aborted":
        run.finish(first)
    else:
        run.scheduler._preempt(first, run.now)
    run.step()
    run.check()
    running = list(run.scheduler.running)
    assert len(running) == 1, "one of them goes on and the others wait for it"
    assert running[0].num_computed == 128, "what the first had computed is found"
    assert prefilled(run) == (200 - 128) + (1 if how == "aborted" else 2) * (200 - SHARED)
    assert third.cached_tokens == SHARED


@pytest.mark.parametrize(
    ("salt", "number", "waits"), [("s", 1, True), ("t", 1, False), ("s", 2, False), ("s", None, False)]
)
def test_only_for_the_same_salt_and_adapter(salt: str, number: int | None, waits: bool) -> None:
    run = Simulation(budget=300)
    run.add("first", COMMON, 5, uses=adapter(1), cache_salt="s")
    uses = None if number is None else adapter(number)
    second = run.add("second", COMMON, 5, uses=uses, cache_salt=salt)
    run.step()
    assert (second.admitted is None) is waits
    run.step()
    assert second.admitted is not None
    assert prefilled(run) >= 0


def test_others_pass_who_waits_and_it_is_not_charged_for_what_it_finds() -> None:
    run = Simulation(budget=64)
    run.add("first", COMMON, 3, tenant="a")
    second = run.add("second", COMMON, 3, tenant="b")
    third = run.add("third", [9] * 20, 3, tenant="b")
    run.step()
    run.step()
    assert second.admitted is None
    assert third.admitted is not None
    first_account, account = next(iter(run.scheduler.running)).account, second.account
    prefilled(run)
    assert first_account.served == INPUT_WEIGHT * 200 + OUTPUT_WEIGHT * 3
    assert account.served == INPUT_WEIGHT * (200 - SHARED + 20) + OUTPUT_WEIGHT * 6


def test_nobody_waits_for_one_that_makes_no_progress() -> None:
    """Prompts of a higher priority take every row of the step: what is held of theirs is let go."""
    run = Simulation(budget=16, max_num_seqs=64)
    slow = run.add("slow", COMMON, 5)
    run.step()
    held = run.add("held", COMMON, 5, priority=5)
    steps = 0
    while held.admitted is None:
        run.add(f"other {steps}", [steps % 250] * 40, 1, priority=5, tenant="b")
        run.step()
        steps += 1
        assert steps <= MAX_HELD + 1
    assert steps == MAX_HELD + 1
    assert slow.num_computed <= 2 * PAGE_SIZE
    assert held.cached_tokens == PAGE_SIZE


def test_a_long_prefix_is_waited_for_while_it_grows() -> None:
    """The wait lasts far more steps than the bound, which counts from the last page completed."""
    run = Simulation(budget=16)
    long = [index % 250 for index in range(16 * 5 * MAX_HELD)]
    run.add("first", long, 3)
    run.step()
    second = run.add("second", long, 3, priority=5)
    # The step above has computed 16 of them.
    assert prefilled(run) == len(long) - 16 + PAGE_SIZE
    assert second.cached_tokens == len(long) - PAGE_SIZE


def test_what_is_generated_is_not_waited_for() -> None:
    run = Simulation(budget=64)
    first = run.add("first", COMMON[:20], 60)
    for _ in range(14):
        run.step()
    second = run.add("second", [*first.token_ids, 1, 2], 3)
    run.step()
    assert second.admitted is not None


def test_who_must_compute_every_token_waits_for_none() -> None:
    run = Simulation(budget=500)
    run.add("first", COMMON, 5)
    second = run.add("second", COMMON, 5)
    second.reader = Pooler(PoolingParams(Pooling.MEAN), len(COMMON))
    run.step()
    assert second.admitted is not None


@settings(max_examples=30, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(20, 80), st.integers(2, 8), st.integers(8, 96))
def test_random_bursts_end_and_leave_nothing_behind(
    draw: random.Random, num_pages: int, rows: int, budget: int
) -> None:
    """Few beginnings in common, short memory, hang-ups and time limits; every read is compared."""
    run = Simulation(num_pages=num_pages, max_num_seqs=rows, budget=max(rows, budget), max_adapters=2)
    starts = [[draw.randrange(250) for _ in range(PAGE_SIZE * draw.randrange(1, 6))] for _ in range(3)]
    for burst in range(8):
        start, salt = draw.choice(starts), draw.choice(["", "x"])
        for number in range(draw.randrange(1, 7)):
            run.add(
                f"{burst} {number}",
                [*start, *([number] * draw.randrange(1, 20))],
                draw.randrange(1, 30),
                uses=draw.choice([None, adapter(1), adapter(2), adapter(3)]),
                tenant=draw.choice("abc"),
                cache_salt=salt,
                priority=draw.randrange(3),
                timeout=draw.choice([None, None, 0.4]),
            )
        for _ in range(draw.randrange(6)):
            if not run.scheduler.idle:
                run.step()
                run.check()
        if draw.random() < 0.3 and run.live:
            run.finish(draw.choice(list(run.live.values())))
    run.run()
    run.check()
    assert len(run.scheduler._pending) == 0
    assert run.pool.num_used == 0


def test_choices_draw_as_if_each_had_computed_the_prompt(
    tiny_model: Path, make_engine: EngineFactory
) -> None:
    """On the model itself: tokens of four seeded choices together equal those of each alone."""
    options = {"temperature": 1.0, "seed": 3}
    asked = [request(str(choice), COMMON, 12, choice=choice, **options) for choice in range(4)]
    engine = make_engine(tiny_model)
    alone = []
    for item in asked:
        engine.add_request(item, None)
        alone.append(tokens(drain(engine)[item.request_id]))
    together = make_engine(tiny_model)
    for item in asked:
        together.add_request(item, None)
    found = drain(together)
    assert [tokens(found[item.request_id]) for item in asked] == alone
    assert together.num_prompt_tokens == 200 + 3 * (200 - SHARED)
    embedded = replace(request("e", COMMON, 0), pooling=PoolingParams())
    together.add_request(embedded, None)
    [delta] = drain(together)["e"]
    engine.add_request(embedded, None)
    [lone] = drain(engine)["e"]
    assert delta.cached_tokens == SHARED
    assert torch.allclose(torch.tensor(delta.embedding), torch.tensor(lone.embedding), atol=1e-5)


def test_who_was_set_back_may_wait_anew() -> None:
    """A preempted sequence waits with full patience again: its first wait does not count."""
    run = Simulation(budget=300)
    run.add("first", COMMON, 5)
    second = run.add("second", COMMON, 5)
    run.step()
    assert (second.admitted, second.num_held) == (None, 1)
    run.step()
    assert second.admitted is not None
    assert (second.num_held, second.num_found_pages) == (0, 0)


def test_a_page_is_its_first_owners_until_that_one_leaves() -> None:
    run = Simulation(budget=16)
    first = run.add("first", COMMON, 5)
    run.step()
    pending = run.scheduler._pending
    second, third = (run.add(name, COMMON, 5) for name in ("second", "third"))
    pending.begin_step()
    pending.add(second)
    pending.drop(second, second.chain.hashes)
    assert pending.holds_back(third), "what another computes as well was taken from the first"
    pending.forget(first)
    assert not pending.holds_back(third), "within the same step"
    assert len(pending) == 0
