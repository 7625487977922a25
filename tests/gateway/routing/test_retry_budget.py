"""Retries never exceed their budget, over any span of time; and a quiet gateway may always retry."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.retry_budget import FLOOR_PER_SECOND, MOST, SHARE, RetryBudget

STEPS = st.lists(st.one_of(st.just("request"), st.just("retry"), st.floats(0, 5)), max_size=400)


@given(STEPS, st.data())
def test_retries_stay_within_the_budget_over_any_span(steps: list[str | float], data: st.DataObject) -> None:
    now = 0.0
    budget = RetryBudget(clock=lambda: now)
    granted: list[int] = []
    requests: list[int] = []
    times: list[float] = []
    for step in steps:
        if isinstance(step, float):
            now += step
        elif step == "request":
            budget.deposit()
        granted.append(int(step == "retry" and budget.withdraw()))
        requests.append(int(step == "request"))
        times.append(now)
    if not steps:
        return
    start = data.draw(st.integers(0, len(steps) - 1))
    end = data.draw(st.integers(start, len(steps) - 1))
    seconds = times[end] - times[start - 1] if start else times[end]
    most = MOST + SHARE * sum(requests[start : end + 1]) + FLOOR_PER_SECOND * seconds
    assert sum(granted[start : end + 1]) <= most + 1e-6


def test_an_outage_multiplies_the_load_by_little() -> None:
    """Every request of 10,000 in a second fails and asks for two retries."""
    now = 0.0
    budget = RetryBudget(clock=lambda: now)
    retries = 0
    for _ in range(10_000):
        now += 0.0001
        budget.deposit()
        retries += budget.withdraw() + budget.withdraw()
    assert 1000 <= retries <= 1000 + MOST + FLOOR_PER_SECOND + 1


def test_no_more_than_so_much_is_saved_up() -> None:
    now = 0.0
    budget = RetryBudget(clock=lambda: now)
    for _ in range(10_000):
        budget.deposit()
    now += 3600
    assert sum(budget.withdraw() for _ in range(100)) == MOST


def test_a_quiet_gateway_may_retry() -> None:
    now = 0.0
    budget = RetryBudget(clock=lambda: now)
    while budget.withdraw():
        pass
    budget.deposit()
    assert not budget.withdraw()
    now += 1 / FLOOR_PER_SECOND
    assert budget.withdraw()
