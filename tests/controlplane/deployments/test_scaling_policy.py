"""Scaling policies: what they may say, what their schedule means, and what the controller decides by them."""

from __future__ import annotations

import datetime as dt
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.deployments.autoscaler.decision import GAP, LOW, Reading, ScaleState, decide
from controlplane.deployments.autoscaler.load import CopyLoad, reading
from controlplane.deployments.scaling.policy import DAYS, Metric, ScalingPolicy
from controlplane.errors import InvalidInputError

NOON = dt.datetime(2026, 11, 23, 12, tzinfo=dt.UTC)  # a Monday
NIGHT: dict[str, Any] = {"name": "night", "at": "20:00", "days": list(DAYS), "min_copies": 0, "max_copies": 2}
DAY: dict[str, Any] = {"name": "day", "at": "08:00", "days": ["mon", "tue"], "min_copies": 2, "max_copies": 6}


def policy(least: int = 1, most: int = 8, **values: Any) -> ScalingPolicy:
    return ScalingPolicy.from_json({"target": 4} | values, min_copies=least, max_copies=most)


@pytest.mark.parametrize(
    ("values", "field", "words"),
    [
        ({"target": 0}, "target", "from 0.01"),
        ({"target": True}, "target", "from 0.01"),
        ({"metric": "cpu"}, "metric", "one of concurrency, invocations"),
        ({"out_after": -1}, "out_after", "0 to 3600"),
        ({"in_cooldown": 1.5}, "in_cooldown", "an integer"),
        ({"hold_seconds": 601}, "hold_seconds", "0 to 600"),
        ({"protect": 1}, "protect", "true or false"),
        ({"timezone": "Mars/Olympus"}, "timezone", "IANA"),
        ({"timezone": "../etc/passwd"}, "timezone", "IANA"),
        ({"routing": "KV_AWARE"}, "routing", "LEAST_OUTSTANDING_REQUESTS, RANDOM"),
        ({"release": "NOW"}, "release", "IDLE_RELEASE, CONSOLIDATION"),
        ({"metrics_seconds": 45}, "metrics_seconds", "one of 0, 10, 30, 60"),
        ({"metrics_seconds": True}, "metrics_seconds", "one of 0, 10, 30, 60"),
        ({"targets": 3}, "targets", "does not exist"),
        ({"schedule": [NIGHT, NIGHT]}, "schedule", "two entries of the same name"),
        ({"schedule": [NIGHT | {"at": "24:00"}]}, "schedule", "HH:MM"),
        ({"schedule": [NIGHT | {"days": ["noon"]}]}, "schedule", "mon, tue"),
        ({"schedule": [NIGHT | {"min_copies": 3}]}, "schedule", "min_copies <= max_copies"),
        ({"schedule": [{"name": "x"}]}, "schedule", "must have the fields"),
    ],
)
def test_what_is_wrong_is_named(values: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words) as caught:
        policy(**values)
    assert caught.value.field == field


def test_a_policy_is_what_it_was_after_json() -> None:
    first = policy(
        metric="invocations", schedule=[NIGHT, DAY], timezone="Europe/Berlin", release="CONSOLIDATION"
    )
    assert ScalingPolicy.from_json(first.to_json(), min_copies=1, max_copies=8) == first
    assert first.least == 0


@pytest.mark.parametrize(
    ("moment", "bounds"),
    [
        ("2026-11-23T07:59+01:00", (0, 2)),  # Monday, still Sunday's night
        ("2026-11-23T08:00+01:00", (2, 6)),
        ("2026-11-23T19:59+01:00", (2, 6)),
        ("2026-11-23T20:00+01:00", (0, 2)),
        ("2026-11-25T12:00+01:00", (0, 2)),  # Wednesday has no day of its own
    ],
)
def test_the_schedule_is_of_its_own_time_zone(moment: str, bounds: tuple[int, int]) -> None:
    scheduled = policy(schedule=[NIGHT, DAY], timezone="Europe/Berlin")
    assert scheduled.bounds(dt.datetime.fromisoformat(moment)) == bounds


def test_a_schedule_outlives_the_change_of_the_clocks() -> None:
    early = NIGHT | {"name": "early", "at": "02:30", "max_copies": 5}
    scheduled = policy(schedule=[NIGHT, early], timezone="Europe/Berlin")
    spring = dt.datetime(2026, 3, 29, 1, 29, tzinfo=dt.UTC)  # 02:30 does not exist on that day
    assert scheduled.bounds(spring)[1] == 2
    assert scheduled.bounds(spring + dt.timedelta(minutes=2))[1] == 5
    assert scheduled.bounds(dt.datetime(2026, 3, 29, 18, 1, tzinfo=dt.UTC))[1] == 2


def run(
    rules: ScalingPolicy, loads: list[float], *, copies: int = 1, step: float = 1.0, whole: bool = True
) -> list[int]:
    """The count after each reading, `step` seconds apart."""
    state, counts = ScaleState(copies), []
    for number, load in enumerate(loads):
        now = NOON + dt.timedelta(seconds=number * step)
        state, _ = decide(rules, state, Reading(load, whole=whole), now)
        counts.append(state.copies)
    return counts


def test_it_scales_out_after_half_a_minute_to_what_the_load_needs() -> None:
    counts = run(policy(), [17.0] * 60)
    assert counts[29] == 1
    assert counts[30] == 5
    assert counts[-1] == 5, "what is on its way is not asked for twice"


def test_a_reading_above_the_target_counts_for_ten_seconds() -> None:
    beats = [9.0 if second % 8 == 0 else 1.0 for second in range(60)]
    assert run(policy(), beats)[-1] == 3, "CloudWatch's maximum of ten seconds would see it, too"
    rare = [9.0 if second % 15 == 0 else 1.0 for second in range(60)]
    assert run(policy(), rare)[-1] == 1


def test_it_scales_in_after_a_quarter_of_an_hour_to_what_its_busiest_moment_needed() -> None:
    loads = [3.0] * 100 + [9.0] + [3.0] * 900
    counts = run(policy(), loads, copies=6)
    assert counts[899] == 6
    assert counts[900] == 3


def test_a_busy_moment_is_forgotten_after_a_quarter_of_an_hour() -> None:
    loads = [3.0] * 100 + [9.0] + [3.0] * 1200
    counts = run(policy(), loads, copies=3)
    assert counts[999] == 3
    assert counts[100 + 900 + 90] == 1, "a part of the window is as long as a tenth of it"


def test_one_step_in_is_followed_by_as_long_a_wait() -> None:
    counts = run(policy(in_after=100, in_cooldown=10), [9.0] * 100 + [0.0] * 150, copies=6)
    assert counts[100] == 3
    assert counts[199] == 3
    assert counts[-1] == 1


def test_the_first_request_brings_the_first_copies_at_once() -> None:
    rules = policy(0, 8, from_zero=2)
    state, cause = decide(rules, ScaleState(0, in_at=NOON.timestamp() - 1), Reading(1, held=1), NOON)
    assert (state.copies, cause) == (2, "1 requests are waiting without a copy")
    assert run(policy(0, 8, in_after=5), [0.0] * 10, copies=1)[-1] == 0


def test_protection_and_missing_answers_take_nothing_away() -> None:
    assert run(policy(in_after=5, protect=True), [0.0] * 100, copies=4)[-1] == 4
    assert run(policy(in_after=5), [0.0] * 100, copies=4, whole=False)[-1] == 4


def test_bounds_are_kept_at_once() -> None:
    state, cause = decide(policy(3, 8), ScaleState(1), Reading(0), NOON)
    assert (state.copies, cause) == (3, "the bounds are 3 to 8 copies now")
    assert decide(policy(1, 2), ScaleState(5), Reading(40), NOON)[0].copies == 2


POLICIES = st.builds(
    policy,
    st.integers(0, 3),
    st.integers(3, 12),
    target=st.floats(0.5, 50),
    out_after=st.integers(0, 60),
    in_after=st.integers(0, 120),
    out_cooldown=st.integers(0, 90),
    in_cooldown=st.integers(0, 90),
    protect=st.booleans(),
)
READINGS = st.lists(st.tuples(st.floats(0, 500), st.booleans(), st.floats(0.5, 40)), min_size=1, max_size=60)


@given(POLICIES, READINGS, st.integers(0, 12))
def test_whatever_comes_the_rules_hold(
    rules: ScalingPolicy, readings: list[tuple[float, bool, float]], begin: int
) -> None:
    least, most = rules.min_copies, rules.max_copies
    state, at = ScaleState(min(max(begin, least), most)), NOON.timestamp()
    last_out = last_in = last_high = quiet = -math.inf
    for load, whole, pause in readings:
        at += pause
        if pause > GAP:
            quiet = at
        before = state.copies
        if load > rules.target * before:
            last_high = at
        state = ScaleState.from_json(state.to_json(), copies=state.copies)
        now = dt.datetime.fromtimestamp(at, dt.UTC)
        state, cause = decide(rules, state, Reading(load, whole=whole), now)
        assert least <= state.copies <= most
        assert bool(cause) == (state.copies != before)
        if state.copies > before:
            assert before == 0 or at - last_out >= rules.out_cooldown - 1e-3
            assert state.copies <= max(math.ceil(load / rules.target), rules.from_zero)
            last_out = at
        if state.copies < before:
            assert not rules.protect
            assert whole
            assert load < LOW * rules.target * before
            assert last_out > last_in or at - last_in >= rules.in_cooldown - 1e-3
            assert at - max(last_high, quiet) >= rules.in_after - 1e-3, "what nobody saw was not quiet"
            assert load <= rules.target * state.copies, "what is left bears what there is"
            last_in = at


@given(POLICIES, st.floats(0, 400), st.floats(0, 400), st.integers(1, 8))
def test_more_load_never_leads_to_fewer_copies(
    rules: ScalingPolicy, one: float, other: float, begin: int
) -> None:
    less, more = sorted((one, other))
    copies = min(max(begin, rules.min_copies), rules.max_copies)
    few, many = (run(rules, [load] * 40, copies=copies, step=10)[-1] for load in (less, more))
    assert few <= many


def test_requests_a_minute_are_counted_across_restarts_of_workers() -> None:
    window: dict[str, Any] = {}

    def load_at(at: float, **begun: int) -> float:
        loads = {url: CopyLoad(0, count) for url, count in begun.items()}
        return reading(Metric.INVOCATIONS, loads, 0, asked=list(loads), window=window, at=at).load

    assert load_at(0, a=100) == 0, "what was there before is nobody's minute"
    assert load_at(1, a=110, b=50) == 10
    assert load_at(2, a=110, b=53) == 13
    window.update(json.loads(json.dumps(window)))
    assert load_at(3, a=4, b=53) == 17, "a worker that counts from nothing again"
    assert load_at(62.5, a=4, b=53) == 4
    assert load_at(64, a=4, b=53) == 0
    assert not reading(Metric.CONCURRENCY, {"a": CopyLoad(3, 0)}, 2, asked=["a", "b"], window={}, at=0).whole
    assert reading(Metric.CONCURRENCY, {"a": CopyLoad(3, 0)}, 2, asked=["a"], window={}, at=0) == Reading(
        5, 2
    )


def test_all_that_a_new_copy_has_had_counts() -> None:
    def first(load: CopyLoad) -> float:
        return reading(Metric.INVOCATIONS, {"a": load}, 0, asked=["a"], window={}, at=1000).load

    assert first(CopyLoad(0, 30, age=20.0)) == pytest.approx(30)
    assert first(CopyLoad(0, 30, age=60.0)) == 0, "when an older one's came is not known"
    assert first(CopyLoad(0, 30)) == 0, "nor of one that does not tell its age"


def test_a_burst_between_two_readings_counts_with_its_time() -> None:
    window: dict[str, Any] = {}

    def load_at(at: float, pending: int, spent: float | None) -> float:
        loads = {"a": CopyLoad(pending, 0, spent)}
        return reading(Metric.CONCURRENCY, loads, 0, asked=["a"], window=window, at=at).load

    assert load_at(0, 0, 50.0) == 0, "of the time before nothing is known"
    assert load_at(1, 0, 54.0) == 4.0, "eight for half a second"
    window.update(json.loads(json.dumps(window)))
    assert load_at(2, 6, 57.0) == 6, "more are there now than there were on the mean"
    assert load_at(3, 0, 0.5) == 0, "a worker that counts from nothing again"
    assert load_at(19, 0, 200.0) == 0, "after a pause it counts anew"
    assert load_at(20, 1, None) == 1, "one of the release before"
    assert load_at(21, 1, 900.0) == 1


def test_two_steps_out_are_a_cooldown_apart() -> None:
    loads = [9.0] * 40 + [30.0] * 100
    counts = run(policy(out_after=5, out_cooldown=90), loads)
    assert counts[5] == 3
    assert counts[94] == 3, "the load is higher since the 40th second, and the last step was at the 5th"
    assert counts[95] == 8


def test_a_pause_of_the_controller_is_no_quiet() -> None:
    rules, state = policy(0, 8), ScaleState(5)
    for at in (0, 1, 1200):
        state, cause = decide(rules, state, Reading(0), NOON + dt.timedelta(seconds=at))
        assert (state.copies, cause) == (5, "")
    assert state.low_since == (NOON + dt.timedelta(seconds=1200)).timestamp()


def test_requests_of_a_pause_are_not_all_of_its_last_second() -> None:
    window: dict[str, Any] = {}

    def load_at(at: float, begun: int) -> float:
        loads = {"a": CopyLoad(0, begun)}
        return reading(Metric.INVOCATIONS, loads, 0, asked=["a"], window=window, at=at).load

    assert load_at(0, 0) == 0
    assert load_at(900, 1500) == pytest.approx(100), "a hundred a minute, as before"
    for second in range(901, 960):
        assert load_at(second, 1500 + round((second - 900) * 100 / 60)) == pytest.approx(100, abs=3)
    reading(Metric.INVOCATIONS, {"b": CopyLoad(0, 1)}, 0, asked=["b"], window=window, at=961)
    assert list(window["last"]) == ["b"], "copies that have gone are forgotten"


def test_what_a_newer_version_stored_is_left_out() -> None:
    stored = policy().to_json() | {"of_tomorrow": True}
    assert ScalingPolicy.stored(stored, min_copies=1, max_copies=8) == policy()
