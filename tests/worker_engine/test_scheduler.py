"""Admission, waiting and preemption, step by step; fairness over time is in test_fairness.py."""

from __future__ import annotations

import random

from tests.worker_engine.simulation import Simulation, adapter
from worker_engine.config import PAGE_SIZE
from worker_engine.memory_pool import MemoryPool
from worker_engine.prefix_cache import HashChain, PrefixCache
from worker_engine.protocol import FinishReason
from worker_engine.scheduler import MAX_BYPASSED


def test_sixteen_pass_one_that_waits_for_an_adapter_slot_and_no_more() -> None:
    """One slot, whose adapter is never without a request: no chance lets the other in."""
    run = Simulation(max_num_seqs=4, max_adapters=1)
    for number in range(4):
        run.add(f"first{number}", [number] * 4, 5 + 3 * number, uses=adapter(1))
    run.step()
    blocked = run.add("blocked", [9] * 4, 5, uses=adapter(2))
    number = 0
    while blocked.admitted is None:
        while len(run.live) < 8:
            run.add(f"more{number}", [number % 7] * 4, 12, uses=adapter(1))
            number += 1
        run.step()
        run.check()
        assert number < 5 * MAX_BYPASSED, "it starves"
    assert blocked.num_bypassed == MAX_BYPASSED


def test_nobody_passes_one_that_lacks_memory() -> None:
    run = Simulation(num_pages=10)
    run.add("running", [1] * (6 * PAGE_SIZE), 20)
    run.step()
    large = run.add("large", [2] * (5 * PAGE_SIZE), 2)
    small = run.add("small", [3] * PAGE_SIZE, 2)
    run.step()
    assert (large.admitted, small.admitted) == (None, None)
    run.run()
    assert large.admitted is not None
    assert small.admitted is not None
    assert large.admitted <= small.admitted


def test_the_youngest_of_the_lowest_priority_gives_its_pages_back() -> None:
    run = Simulation(num_pages=4)
    old = run.add("old", [1] * (PAGE_SIZE - 1), 40)
    young = run.add("young", [2] * (PAGE_SIZE - 1), 40)
    high = run.add("high", [3] * (PAGE_SIZE - 1), 40, priority=1)
    for _ in range(3):
        run.step()
        run.check()
    assert set(run.scheduler.running) == {old, high}
    assert run.scheduler.num_preemptions == 1
    while run.scheduler.num_preemptions == 1:
        run.step()
    assert list(run.scheduler.running) == [high]
    run.run()
    assert young.finish_reason is old.finish_reason is FinishReason.LENGTH


def test_deadlines_are_kept_in_order_and_let_go_of() -> None:
    """Hundreds in no order, of which most end early: each of the others is named once, and on time."""
    run, draw = Simulation(), random.Random(2)
    limits = {str(number): draw.uniform(1, 100) for number in range(600)}
    for name, timeout in limits.items():
        sequence = run.add(name, [1], 1, timeout=timeout)
        if draw.random() < 0.8:
            run.finish(sequence)
    assert len(run.scheduler._deadlines) <= 2 * len(run.live) + 65, "ended sequences are held"
    for run.now in range(0, 101, 5):
        late = [sequence.request.request_id for sequence in run.scheduler.expired()]
        assert sorted(late) == sorted(name for name in run.live if limits[name] <= run.now)
        for name in late:
            run.finish(run.live[name], FinishReason.TIMEOUT)
    assert not run.live


def test_what_a_prompt_finds_cached_costs_its_tenant_nothing() -> None:
    run = Simulation()
    prompt = [index % 9 for index in range(4 * PAGE_SIZE + 1)]
    run.add("first", prompt, 1, tenant="a")
    run.step()
    [account] = run.scheduler.accounts
    before = account.served
    run.add("again", prompt, 1, tenant="a")
    run.step()
    assert account.served - before == 1 + 2, "one token computed, one made"


def test_the_youngest_of_the_most_served_tenant_gives_its_row() -> None:
    run = Simulation(max_num_seqs=6)
    for tenant, length in (("more", 200), ("less", 40)):
        for number in range(3):
            run.add(f"{tenant}{number}", [number] * length, 500, tenant=tenant)
    while len(run.scheduler.running) < 6 or any(item.num_remaining > 1 for item in run.scheduler.running):
        run.step()
    before = list(run.scheduler.running)
    light = run.add("light", [9] * 4, 5, tenant="light")
    run.step()
    assert light in run.scheduler.running
    [victim] = [sequence for sequence in before if sequence not in run.scheduler.running]
    assert victim is [sequence for sequence in before if sequence.account.tenant == "more"][-1]


def test_nobody_gives_way_to_one_that_would_still_lack_memory() -> None:
    run = Simulation(num_pages=8, max_num_seqs=2)
    for number in range(2):
        run.add(f"flood{number}", [number] * (2 * PAGE_SIZE), 10, tenant="flood")
    run.step()
    large = run.add("large", [9] * (7 * PAGE_SIZE), 2, tenant="light")
    for _ in range(3):
        run.step()
    assert (large.admitted, run.scheduler.num_preemptions) == (None, 0)
    run.run()


def test_a_beginning_ends_where_its_first_page_is_lost() -> None:
    """Pages behind an evicted one are of no use, although their hashes are known."""
    pool = MemoryPool(4)
    cache = PrefixCache(pool)
    tokens = list(range(3 * PAGE_SIZE))
    chain, pages = HashChain("", "").extend(tokens, 3), pool.allocate(3)
    for digest, page in zip(chain, pages, strict=True):
        cache.insert(digest, page)
    cache.release(pages[1:2])
    pool.allocate(1)
    assert cache.acquire(chain) == pages[:1]


def test_what_can_be_held_alone_fits() -> None:
    run = Simulation(num_pages=6)
    assert run.scheduler.fits(6 * PAGE_SIZE)
    assert not run.scheduler.fits(6 * PAGE_SIZE + 1)
    assert run.scheduler.fits(4 * PAGE_SIZE, adapter(1, pages=2))
    assert not run.scheduler.fits(4 * PAGE_SIZE + 1, adapter(1, pages=2))
    run.add("whole", [1] * (4 * PAGE_SIZE - 1), 2, uses=adapter(1, pages=2))
    run.run()


def test_a_newcomer_of_a_tenant_served_less_goes_before_a_running_prompt() -> None:
    run = Simulation(budget=32)
    run.add("long", [1] * 600, 2, tenant="much")
    run.step()
    short = run.add("short", [2] * 20, 2, tenant="little")
    chunks = run.step()
    assert [(chunk.sequence is short, chunk.count) for chunk in chunks] == [(True, 20), (False, 12)]


def test_a_running_prompt_of_a_tenant_served_less_goes_before_a_newcomer() -> None:
    run = Simulation(budget=32)
    run.add("past", [1] * 2000, 2, tenant="much")
    run.run()
    long = run.add("long", [2] * 600, 2, tenant="little")
    run.step()
    short = run.add("short", [3] * 20, 2, tenant="much")
    while long.num_remaining > 32:
        chunks = run.step()
        assert [(chunk.sequence, chunk.count) for chunk in chunks] == [(long, 32)]
        assert short.admitted is None
    run.run()
    assert short.admitted is not None


def test_within_a_tenant_a_running_prompt_goes_before_a_newcomer() -> None:
    run = Simulation(budget=32)
    long = run.add("long", [1] * 600, 2)
    run.step()
    short = run.add("short", [2] * 20, 2)
    chunks = run.step()
    assert [(chunk.sequence, chunk.count) for chunk in chunks] == [(long, 32)]
    assert short.admitted is None


def test_a_deadline_counts_from_its_very_moment() -> None:
    run = Simulation()
    sequence = run.add("late", [1], 5, timeout=2.0)
    run.now = 1.999
    assert run.scheduler.expired() == []
    run.now = 2.0
    assert run.scheduler.expired() == [sequence]


def test_of_two_running_prompts_the_less_served_tenants_goes_on() -> None:
    """The other one entered first, and its tenant has had more."""
    run = Simulation(budget=32)
    run.add("past", [5] * 300, 1, tenant="much")
    run.run()
    first = run.add("first", [1] * 600, 2, tenant="much")
    run.step()
    second = run.add("second", [2] * 600, 2, tenant="little")
    run.step()
    assert list(run.scheduler.running) == [first, second]
    for _ in range(3):
        assert [(chunk.sequence, chunk.count) for chunk in run.step()] == [(second, 32)]


def test_an_adapter_that_lacks_memory_keeps_its_sequence_out() -> None:
    """Its prompt alone would fit."""
    run = Simulation(num_pages=6)
    run.add("running", [1] * (3 * PAGE_SIZE), 6)
    run.step()
    large = run.add("large", [2] * PAGE_SIZE, 2, uses=adapter(1, pages=3))
    run.step()
    run.check()
    assert large.admitted is None
    run.run()
    assert large.admitted is not None


def test_prompts_are_counted_once_with_what_they_found() -> None:
    run = Simulation()
    prompt = [index % 9 for index in range(2 * PAGE_SIZE + 5)]
    for name in ("first", "again"):
        run.add(name, prompt, 1)
        run.step()
    prefixes = run.scheduler.prefixes
    assert (prefixes.num_queried_tokens, prefixes.num_hit_tokens) == (2 * len(prompt), 2 * PAGE_SIZE)
