"""The state machine of alarms: at the threshold, with missing values, and when values flap."""

from __future__ import annotations

import pytest

from controlplane.monitoring.alarm_states import breaches, next_state, reason_text
from controlplane.monitoring.models import Comparison, Metric, MissingData, State

OK, ALARM, NO_DATA = State.OK, State.ALARM, State.INSUFFICIENT_DATA
_VALUES = {"X": 9.0, "0": 1.0, "-": None}


@pytest.mark.parametrize(
    ("comparison", "below", "at", "above"),
    [
        (Comparison.GREATER, False, False, True),
        (Comparison.GREATER_OR_EQUAL, False, True, True),
        (Comparison.LESS, True, False, False),
        (Comparison.LESS_OR_EQUAL, True, True, False),
    ],
)
def test_a_value_at_the_threshold_breaches_only_if_equality_does(
    comparison: str, below: bool, at: bool, above: bool
) -> None:
    found = [breaches(value, comparison, 5.0) for value in (4.999, 5.0, 5.001)]
    assert found == [below, at, above]


def state_of(values: str, *, of: int, treat: str = MissingData.MISSING, state: str = OK) -> State:
    return next_state(
        [_VALUES[value] for value in values],
        comparison=Comparison.GREATER,
        threshold=5.0,
        datapoints_to_alarm=of,
        treat_missing_data=treat,
        state=state,
    )


@pytest.mark.parametrize(
    ("values", "of", "expected"),
    [
        ("0", 1, OK),
        ("X", 1, ALARM),
        ("0XX", 3, OK),
        ("XXX", 3, ALARM),
        ("X0X", 2, ALARM),
        ("X00", 2, OK),
        ("XX0", 2, ALARM),
        ("X0X0X", 3, ALARM),
        ("00X0X", 3, OK),
    ],
)
@pytest.mark.parametrize("state", State.values)
@pytest.mark.parametrize("treat", MissingData.values)
def test_without_missing_values_m_of_n_decide(
    values: str, of: int, expected: State, state: str, treat: str
) -> None:
    assert state_of(values, of=of, treat=treat, state=state) == expected


@pytest.mark.parametrize(
    ("values", "of", "missing", "ignore", "breaching", "not_breaching"),
    [
        # None as an expectation: the state is kept.
        ("---", 3, NO_DATA, None, ALARM, OK),
        ("---", 1, NO_DATA, None, ALARM, OK),
        ("0--", 3, OK, OK, OK, OK),
        ("X--", 3, None, None, ALARM, OK),
        ("X-0", 3, OK, OK, OK, OK),
        ("X-X", 3, None, None, ALARM, OK),
        ("X-X", 2, ALARM, ALARM, ALARM, ALARM),
        ("-0X", 2, None, None, ALARM, OK),
        ("-X-", 1, ALARM, ALARM, ALARM, ALARM),
        ("-0-", 3, OK, OK, OK, OK),
    ],
)
@pytest.mark.parametrize("state", State.values)
def test_missing_values_count_as_the_alarm_says(
    values: str,
    of: int,
    missing: State | None,
    ignore: State | None,
    breaching: State,
    not_breaching: State,
    state: str,
) -> None:
    for treat, expected in (
        (MissingData.MISSING, missing),
        (MissingData.IGNORE, ignore),
        (MissingData.BREACHING, breaching),
        (MissingData.NOT_BREACHING, not_breaching),
    ):
        assert state_of(values, of=of, treat=treat, state=state) == (expected or state), treat


def test_two_of_three_stays_in_alarm_while_values_flap() -> None:
    series, state, states = "000X0X0X0000", OK, []
    for end in range(3, len(series) + 1):
        state = state_of(series[end - 3 : end], of=2, state=state)
        states.append(state)
    assert states == [OK, OK, OK, ALARM, OK, ALARM, OK, OK, OK, OK]


def test_a_single_period_follows_each_value() -> None:
    assert [state_of(value, of=1) for value in "0X0X-"] == [OK, ALARM, OK, ALARM, NO_DATA]


@pytest.mark.parametrize(
    ("metric", "values", "expected"),
    [
        (
            Metric.TTFT_P95,
            [400.0, None, 800.0],
            "1 of the last 3 periods are > 500 ms; the latest values: 400 ms, none, 800 ms.",
        ),
        (Metric.ERROR_RATE, [None, None], "No values in the last 2 periods."),
        (Metric.NO_REQUESTS, [3.0, 0.0], "Requests of the last periods: 3, 0."),
    ],
)
def test_the_reason_shows_the_values(metric: str, values: list[float | None], expected: str) -> None:
    assert reason_text(values, metric=metric, comparison=Comparison.GREATER, threshold=500.0) == expected
