"""Rows, and adapters' slots, that go from one tenant to another: when they do and whose, and when not."""

from __future__ import annotations

import pytest

from tests.worker_engine.simulation import Simulation, adapter
from worker_engine.config import PAGE_SIZE
from worker_engine.sequence import Sequence


def fill(run: Simulation, tenant: str, rows: int, *, length: int = 4, **options: object) -> list[Sequence]:
    """Run `rows` sequences of a tenant until all are in the batch with their prompts computed."""
    made = [
        run.add(f"{tenant}{len(run.live)}", [len(run.live)] * length, 500, tenant=tenant, **options)  # type: ignore[arg-type]
        for _ in range(rows)
    ]
    for _ in range(100):
        if all(sequence.admitted is not None and sequence.num_remaining <= 1 for sequence in made):
            return made
        run.step()
    raise AssertionError(f"{tenant} does not enter")


def running(run: Simulation, tenant: str) -> int:
    return sum(sequence.account.tenant == tenant for sequence in run.scheduler.running)


def test_who_is_far_behind_gets_more_rows_than_its_share() -> None:
    run = Simulation(max_num_seqs=4)
    fill(run, "more", 2, length=900)
    fill(run, "less", 2)
    light = run.add("third", [9] * 4, 5, tenant="less")
    run.step()
    assert light in run.scheduler.running
    assert (running(run, "more"), running(run, "less")) == (1, 3)


def test_nobody_is_pushed_below_its_share() -> None:
    """Four rows, three tenants: one and a third each, so that two of a tenant's two rows are its own."""
    run = Simulation(max_num_seqs=4)
    fill(run, "a", 2)
    fill(run, "b", 2)
    third = run.add("third", [9] * 4, 5, tenant="c")
    for _ in range(10):
        run.step()
    assert (third.admitted, run.scheduler.num_preemptions) == (None, 0)


def test_who_had_far_more_takes_no_row() -> None:
    """Not even up to its share: the other tenants catch up first."""
    run = Simulation(max_num_seqs=4)
    run.add("past", [1] * 3000, 1, tenant="rich")
    run.run()
    fill(run, "poor", 4)
    rich = run.add("rich", [9] * 4, 5, tenant="rich")
    for _ in range(10):
        run.step()
    assert (rich.admitted, run.scheduler.num_preemptions) == (None, 0)


def test_the_adapter_of_fewest_rows_leaves() -> None:
    run = Simulation(max_num_seqs=6, max_adapters=2)
    fill(run, "flood", 2)
    [single] = fill(run, "flood", 1, uses=adapter(2))
    others = fill(run, "flood", 3, uses=adapter(1))
    light = run.add("light", [9] * 4, 5, uses=adapter(9), tenant="light")
    run.step()
    assert light in run.scheduler.running
    assert single not in run.scheduler.running
    assert all(sequence in run.scheduler.running for sequence in others)


def test_an_adapter_that_two_tenants_use_stays() -> None:
    """One of them had far more than the newcomer; the other would lose its row for it."""
    run = Simulation(max_num_seqs=8, max_adapters=1)
    fill(run, "modest", 1, uses=adapter(1))
    fill(run, "flood", 6, length=900, uses=adapter(1))
    light = run.add("light", [9] * 4, 5, uses=adapter(2), tenant="light")
    for _ in range(5):
        run.step()
    assert (light.admitted, run.scheduler.num_preemptions) == (None, 0)


def test_pages_that_others_read_too_are_not_freed_by_a_victim() -> None:
    run = Simulation(num_pages=8, max_num_seqs=2)
    common = [7] * (4 * PAGE_SIZE)
    for number in range(2):
        run.add(f"flood{number}", [*common, number], 8, tenant="flood")
        run.step()
    large = run.add("large", [9] * (5 * PAGE_SIZE), 2, tenant="light")
    run.step()
    assert (large.admitted, run.scheduler.num_preemptions) == (None, 0)
    run.run()


def busy(run: Simulation, number: int, tenant: str, priority: int) -> None:
    """One more request of a tenant that always has some waiting."""
    run.add(f"{tenant}{number}", [number % 9] * 10, 20, tenant=tenant, priority=priority)


def test_age_begins_anew_with_each_admission() -> None:
    """Behind a backlog of a higher priority: one for each two steps of age, not a stream once it is old."""
    run = Simulation(max_num_seqs=2)
    for number in range(1000):
        busy(run, number, "high", 2)
    low = [run.add(f"low{number}", [1] * 10, 20, tenant="low") for number in range(40)]
    while run.now < 65:
        run.step()
    assert 1 <= sum(sequence.admitted is not None for sequence in low) <= 3


def test_age_lifts_no_higher_than_the_highest_priority() -> None:
    """At equal rank the tenant that had more still waits, however old its requests."""
    run = Simulation(max_num_seqs=1)
    for number in range(300):
        busy(run, number, "high", 1)
    rich = run.add("rich", [2] * 10, 5, tenant="rich")
    rich.account.served += 1e6
    while run.now < 30:
        run.step()
    assert rich.admitted is None


def test_a_running_prompt_keeps_a_priority_that_nobody_waits_with() -> None:
    run = Simulation(budget=32)
    high = run.add("high", [1] * 300, 2, tenant="much", priority=3)
    run.step()
    light = run.add("light", [2] * 10, 5, tenant="light")
    assert [chunk.sequence for chunk in run.step()] == [high]
    assert light.admitted is None


def test_who_leaves_the_queue_unserved_changes_nobodys_age() -> None:
    run = Simulation(max_num_seqs=1)
    fill(run, "first", 1)
    for tenant in "ab":
        for number in range(2):
            run.add(f"{tenant} {number}", [3] * 4, 5, tenant=tenant)
    [group, _] = run.scheduler.waiting.groups(run.now)
    since = group.since
    run.now += 5
    run.finish(group.sequences[0])
    assert group.since == since
    gone = run.add("gone", [3], 1, tenant="c")
    run.scheduler.waiting.remove(gone)
    with pytest.raises(ValueError, match="does not wait"):
        run.scheduler.waiting.remove(gone)
