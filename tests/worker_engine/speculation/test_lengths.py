"""Guesses are verified where that makes tokens come sooner, and where it does not they are not."""

from __future__ import annotations

import itertools
import random

import pytest

from tests.worker_engine.speculation.conftest import Prophet
from worker_engine.speculation.acceptance import MAX_KNOWN, Acceptance, KnownAcceptance
from worker_engine.speculation.costs import StepCosts
from worker_engine.speculation.counts import MAX_ADAPTERS, OTHERS, SpeculationCounts
from worker_engine.speculation.lengths import MARGIN, PROBE_EVERY, PROBE_LENGTH, STALE, Lengths, Offer


class Dear(Prophet):
    """Guesses that take time."""

    free = False

    def __init__(self, seconds: float) -> None:
        super().__init__({}, 0.0)
        self._seconds = seconds

    def seconds(self, sequences: int, longest: int) -> float:
        return self._seconds * longest


def measured(base: float, slope: float) -> StepCosts:
    costs = StepCosts("cpu")
    for _ in range(8):
        for rows in (1, 2, 3, 4, 8, 16, 32, 64):
            costs.observe(rows, base + slope * rows)
    return costs


def one(lengths: Lengths, rate: float, most: int = 8) -> int:
    return lengths.choose([Offer(rate, most)], decoding=1, rows=1, room=100)[0]


def test_length_follows_acceptance() -> None:
    lengths = Lengths(measured(0.008, 0.001), Prophet({}, 1.0))
    chosen = [one(lengths, rate) for rate in (0.05, 0.3, 0.6, 0.8, 0.95, 0.99)]
    assert chosen == sorted(chosen)
    assert chosen[0] == 0
    assert chosen[-1] == 8


def test_length_follows_the_cost_of_rows() -> None:
    """If a row costs nearly nothing even bad drafts pay; if it costs a step none does."""
    free = Lengths(measured(0.008, 0.00001), Prophet({}, 1.0))
    dear = Lengths(measured(0.0, 0.008), Prophet({}, 1.0))
    assert one(free, 0.3) >= 3
    assert one(dear, 0.95) == 0


def test_a_large_batch_verifies_less() -> None:
    """Of eight sequences those with better drafts get the rows; each draft must earn its row's cost."""
    lengths = Lengths(measured(0.006, 0.001), Prophet({}, 1.0))
    rates = [0.95, 0.9, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05]
    chosen = lengths.choose([Offer(rate, 8) for rate in rates], decoding=8, rows=8, room=120)
    assert chosen == sorted(chosen, reverse=True)
    assert chosen[0] >= 3
    assert chosen[-1] == 0
    assert chosen[0] < one(lengths, 0.95) + 1


def test_time_to_guess_counts() -> None:
    assert one(Lengths(measured(0.008, 0.001), Dear(0.0001)), 0.8) >= 3
    assert one(Lengths(measured(0.008, 0.001), Dear(0.01)), 0.8) == 0


@pytest.mark.parametrize("room", [0, 1, 5, 11])
def test_room_is_kept(room: int) -> None:
    lengths = Lengths(measured(0.008, 0.0), Prophet({}, 1.0))
    chosen = lengths.choose([Offer(0.99, 8)] * 3, decoding=3, rows=3, room=room)
    assert sum(chosen) == room


def test_the_choice_is_the_best_of_all() -> None:
    """Against every choice of lengths, by the formula."""
    draw = random.Random(2)
    for _ in range(20):
        costs = measured(draw.uniform(0.001, 0.02), draw.uniform(0.0001, 0.004))
        offers = [Offer(draw.uniform(0.1, 0.99), draw.randrange(1, 5)) for _ in range(3)]

        def speed(lengths: tuple[int, ...], costs: StepCosts = costs, offers: list[Offer] = offers) -> float:
            gain = sum(
                offer.rate**place
                for offer, n in zip(offers, lengths, strict=True)
                for place in range(1, n + 1)
            )
            return (3 + gain) / costs.seconds(3 + sum(lengths))

        chosen = Lengths(costs, Prophet({}, 1.0)).choose(offers, decoding=3, rows=3, room=50)
        every = [
            (a, b, c)
            for a in range(offers[0].most + 1)
            for b in range(offers[1].most + 1)
            for c in range(offers[2].most + 1)
        ]
        best = max(map(speed, every))
        assert speed(tuple(chosen)) == pytest.approx(best) or best < MARGIN * speed((0, 0, 0))


def test_what_does_not_pay_is_tried_again_now_and_then() -> None:
    """Ever more seldom, and not at all where it is known without trying that guesses are wrong."""
    lengths = Lengths(measured(0.0, 0.008), Prophet({}, 1.0))
    tried = [step for step in range(4000) if one(lengths, 0.6)]
    assert tried[0] == PROBE_EVERY - 1
    assert 4 <= len(tried) <= 8
    gaps = [after - before for before, after in itertools.pairwise(tried)]
    assert gaps == sorted(gaps)
    lengths = Lengths(measured(0.0, 0.008), Prophet({}, 1.0))
    assert not any(one(lengths, 0.1) for _ in range(4000))
    unknown = Lengths(measured(0.0, 0.008), Dear(0.001))
    assert [one(unknown, 0.1) for _ in range(PROBE_EVERY)][-1] == PROBE_LENGTH


def test_a_step_without_guesses_is_measured_again() -> None:
    """Otherwise the cost of a step without drafts would be outdated."""
    costs = measured(0.008, 0.0001)
    lengths = Lengths(costs, Prophet({}, 1.0))
    chosen = []
    for _ in range(3 * STALE):
        chosen.append(one(lengths, 0.95))
        costs.observe(1 + chosen[-1], 0.008)
    assert 2 <= chosen.count(0) <= 6


def test_costs_rise_with_rows_and_forget_a_busy_moment() -> None:
    costs = StepCosts("cpu")
    assert costs.seconds(9) > costs.seconds(1)
    for _ in range(10):
        costs.observe(8, 0.010)
    for _ in range(10):
        costs.observe(1, 0.020)
    assert costs.seconds(1) <= costs.seconds(4) <= costs.seconds(8) <= costs.seconds(50)
    before = costs.seconds(8)
    costs.observe(8, 0.5)
    assert costs.seconds(8) < 3 * before
    for _ in range(20):
        costs.observe(8, 0.010)
        costs.observe(1, 0.005)
    assert costs.seconds(1) < 0.0075
    assert costs.seconds(8) == pytest.approx(0.010, rel=0.4)


def test_acceptance_is_learned_and_forgotten() -> None:
    acceptance = Acceptance(0.5)
    for _ in range(10):
        acceptance.observe(5, 5)
    assert acceptance.rate > 0.9
    for _ in range(15):
        acceptance.observe(0, 1)
    assert acceptance.rate < 0.55
    for _ in range(40):
        acceptance.observe(0, 1)
    assert acceptance.rate < 0.2


def test_what_is_kept_is_bounded() -> None:
    known, counts = KnownAcceptance(), SpeculationCounts()
    before = 0
    for index in range(3 * MAX_KNOWN):
        known.get_or_create(f"a{index}").observe(1, 1)
        known.get_or_create("busy").observe(1, 1)
        counts.add(f"a{index}", 3, 1)
        counts.add("busy", 1, 1)
        told = counts.by_adapter()
        assert len(told) <= MAX_ADAPTERS + 1
        assert sum(proposed for proposed, _ in told.values()) == 4 * (index + 1)
        others = told.get(OTHERS, (0, 0))[0]
        assert others >= before
        before = others
    assert len(known._known) == MAX_KNOWN
    assert known.get_or_create("busy").rate > 0.9
    assert counts.by_adapter()["busy"] == (3 * MAX_KNOWN, 3 * MAX_KNOWN)
