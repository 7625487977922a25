"""The judgement: false differences stay below the level whatever the noise, true ones are found."""

from __future__ import annotations

import itertools
import math
import resource

import numpy as np
import numpy.typing as npt
import pytest

from optimizer.measurement.statistics import FAMILY_LEVEL, judged, judged_means, least_rounds, middle

pytestmark = pytest.mark.costly("many comparisons")

ROUNDS, FIGURES = 12, 6
Floats = npt.NDArray[np.float64]


def noise(draw: np.random.Generator, turns: int) -> Floats:
    """log of a time by figure and turn [figures, turns], as bad as machines are: a drift over the run,
    wandering neighbours, shocks that all figures share, tails without a variance, the odd stall, and a second
    turn of each round that is faster than its first."""
    drift = np.linspace(0.0, draw.normal(0.0, 0.5), turns)
    wander = np.cumsum(draw.normal(0.0, 0.02, turns))
    shared = 0.05 * draw.standard_t(2, turns)
    own = 0.02 * draw.standard_t(1.5, (FIGURES, turns))
    stalls = (draw.random(turns) < 0.05) * draw.exponential(1.0, turns)
    second = np.tile([0.0, -0.04], turns // 2)
    return np.asarray(drift + wander + shared + stalls + second + own, dtype=np.float64)


def simulated(seed: int, *, effect: float = 0.0, rounds: int = ROUNDS) -> dict[str, list[float]]:
    """log ratios of two arms whose turns' order is drawn in each round, as `rounds.measure` draws it."""
    draw = np.random.default_rng(seed)
    times = noise(draw, 2 * rounds).reshape(FIGURES, rounds, 2)
    flipped = draw.integers(0, 2, rounds).astype(bool)
    ratios = np.where(flipped, times[:, :, 1] - times[:, :, 0], times[:, :, 0] - times[:, :, 1]) + effect
    return {f"figure {index}": list(values) for index, values in enumerate(ratios)}


@pytest.mark.slow
def test_a_hundred_runs_of_the_same_show_no_difference_in_95() -> None:
    """A run shows one if any of its six figures does: the family's chance, not each figure's."""
    shown = [any(verdict.shown for verdict in judged(simulated(seed)).values()) for seed in range(100)]
    assert sum(shown) <= 5


@pytest.mark.slow
def test_judged_one_by_one_the_same_runs_show_too_many() -> None:
    """Without the family-wise correction the requirement fails on the same noise."""
    shown = 0
    for seed in range(100):
        ratios = simulated(seed)
        shown += any(
            verdict.shown for name in ratios for verdict in judged({name: ratios[name]}, level=0.05).values()
        )
    assert shown > 5


def test_a_third_is_found_through_the_same_noise() -> None:
    found = [
        sum(verdict.shown for verdict in judged(simulated(seed, effect=math.log(1.35))).values())
        for seed in range(40)
    ]
    assert np.mean(found) / FIGURES > 0.5
    verdict = judged(simulated(1, effect=math.log(1.35)))["figure 0"]
    assert verdict.ratio == pytest.approx(1.35, rel=0.1)


def test_intervals_hold_the_truth_in_95_of_100() -> None:
    truth = 1.2
    held = [
        verdict.low <= truth <= verdict.high
        for seed in range(60)
        for verdict in judged(simulated(seed, effect=math.log(truth))).values()
    ]
    assert np.mean(held) >= 0.92


def test_p_is_that_of_all_signs() -> None:
    """Five rounds, two figures, against a count over all 32 assignments by hand."""
    table = np.array([[0.3, 0.2, 0.5, 0.1, 0.4], [0.1, -0.2, 0.3, 0.5, 0.4]])
    ranks = np.array([[3.0, 2, 5, 1, 4], [1.0, -2, 3, 5, 4]])

    def statistic(signs: tuple[int, ...]) -> Floats:
        seen: Floats = np.abs((ranks * np.array(signs)).sum(axis=1)) / math.sqrt(55)
        return seen

    every = [statistic(signs) for signs in itertools.product((1, -1), repeat=5)]
    seen = statistic((1,) * 5)
    first = np.mean([max(item) >= seen[0] - 1e-9 for item in every])
    second = max(first, np.mean([item[1] >= seen[1] - 1e-9 for item in every]))
    told = judged({"first": list(table[0]), "second": list(table[1])})
    assert (told["first"].p, told["second"].p) == pytest.approx((first, second))


def test_the_verdict_is_the_same_for_twins_and_none_for_no_difference() -> None:
    values = [0.1, 0.12, 0.09, 0.15, 0.11, 0.1, 0.13, 0.1, 0.08, 0.12]
    told = judged({"a": values, "b": values, "none": [0.0] * 10})
    assert told["a"].p == told["b"].p == 2 / 2**10
    assert (told["none"].p, told["none"].ratio, told["none"].shown) == (1.0, 1.0, False)


@pytest.mark.parametrize(("figures", "level"), [(3, FAMILY_LEVEL), (6, FAMILY_LEVEL), (9, FAMILY_LEVEL / 3)])
def test_the_least_rounds_suffice_and_one_fewer_does_not(figures: int, level: float) -> None:
    """Figures that all agree in every round, by chance independent: the worst case for the family."""
    rounds = least_rounds(figures, level)
    assert figures * 2 / 2**rounds <= level < figures * 2 / 2 ** (rounds - 2)
    values = [0.1 + index / 1000 for index in range(rounds)]
    assert judged({str(index): values for index in range(figures)}, level=level)["0"].shown


def test_one_wild_round_decides_nothing() -> None:
    values = [0.01, -0.02, 0.015, -0.01, 0.02, -0.015, 0.01, -0.01, 0.02, 50.0]
    verdict = judged({"a": values})["a"]
    assert not verdict.shown
    assert verdict.ratio < 1.05


def test_middle_is_hodges_and_lehmanns() -> None:
    pairs = [(a + b) / 2 for a, b in itertools.combinations_with_replacement((1.0, 5.0, 2.0), 2)]
    assert middle(np.array([1.0, 5.0, 2.0])) == np.median(pairs)


@pytest.mark.slow
def test_many_rounds_and_texts_take_little_memory() -> None:
    """A thousand rounds have half a million pairs, of 2,000 resamples 8 GB; texts as many signs."""
    draw = np.random.default_rng(7)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    verdict = judged({"a": list(draw.normal(0.05, 0.05, 300))})["a"]
    means = judged_means({"a": list(draw.normal(0.01, 0.05, 5000))})["a"]
    assert (verdict.shown, means.shown) == (True, True)
    assert verdict.low < 1.05 < verdict.high
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 << 10


def test_figures_of_other_rounds_are_no_family() -> None:
    with pytest.raises(ValueError, match="same rounds"):
        judged({"a": [0.1] * 5, "b": [0.1] * 6})


def test_means_of_a_family_by_holm() -> None:
    draw = np.random.default_rng(5)
    told = judged_means(
        {
            "worse": list(draw.normal(0.05, 0.02, 32)),
            "same": list(draw.normal(0.0, 0.02, 24)),
            "none": [0.0] * 9,
        }
    )
    assert [told[name].shown for name in ("worse", "same", "none")] == [True, False, False]
    assert told["worse"].low < told["worse"].mean < told["worse"].high
    assert told["none"].p == 1.0


@pytest.mark.slow
def test_a_hundred_families_of_equal_quality_show_no_difference() -> None:
    shown = 0
    for seed in range(100):
        draw = np.random.default_rng(seed)
        told = judged_means({str(n): list(0.01 * draw.standard_t(2, n)) for n in (12, 24, 40)}, seed=seed)
        shown += any(verdict.shown for verdict in told.values())
    assert shown <= 5
