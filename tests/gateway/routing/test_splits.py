"""Arms of a split: right shares, sticky assignment, and a minimum of moved callers."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from contracts.base_routes import BaseRoute, CanaryRoute, CopyRoute
from gateway.routing.splits import choose_arm, passed_over

USERS = [f"tenant\0bot\0prod\0user-{number}" for number in range(4000)]


@st.composite
def percents(draw: st.DrawFn) -> list[int]:
    """1 to 5 whole numbers above 0 that add up to 100."""
    cuts = sorted(draw(st.sets(st.integers(1, 99), max_size=4)))
    return [end - start for start, end in zip([0, *cuts], [*cuts, 100], strict=True)]


def arms(shares: list[int]) -> list[tuple[int, int]]:
    return list(enumerate(shares, 1))


@given(percents())
@pytest.mark.costly("a property over many requests")
def test_shares_are_as_asked(shares: list[int]) -> None:
    found = Counter(choose_arm(arms(shares), user) for user in USERS)
    for version, percent in arms(shares):
        # Four standard deviations of a binomial over 4,000 users.
        spread = 4 * (4000 * percent / 100 * (1 - percent / 100)) ** 0.5
        assert abs(found[version] - 40 * percent) <= spread + 1


@given(percents(), st.text())
def test_an_arm_depends_on_the_subject_alone(shares: list[int], subject: str) -> None:
    listed = arms(shares)
    chosen = choose_arm(listed, subject)
    assert choose_arm(list(reversed(listed)), subject) == chosen


@given(percents(), st.integers(0, 4), st.integers(1, 99))
@pytest.mark.costly("a property over many requests")
def test_an_arm_that_grows_keeps_all_whom_it_had(shares: list[int], grown: int, more: int) -> None:
    """Its gain comes from the others in proportion; all other callers stay."""
    assume(grown < len(shares) > 1)
    before = arms(shares)
    after = [
        (version, percent * 100 if version != grown + 1 else (percent + more) * 100)
        for version, percent in before
    ]
    for user in USERS[:500]:
        old, new = choose_arm(before, user), choose_arm(after, user)
        assert new in (old, grown + 1)
        if old == grown + 1:
            assert new == old


def test_ten_percent_become_twenty() -> None:
    ten = {user for user in USERS if choose_arm([(1, 90), (2, 10)], user) == 2}
    twenty = {user for user in USERS if choose_arm([(1, 80), (2, 20)], user) == 2}
    hundred = {user for user in USERS if choose_arm([(2, 100)], user) == 2}
    assert ten < twenty < hundred == set(USERS)
    assert 320 < len(ten) < 480
    assert 700 < len(twenty) < 900


def base_route(percent: int, name: str = "rollout-1") -> BaseRoute:
    copies = tuple(CopyRoute(key, "worker", f"http://{key}") for key in ("old-1", "new-1", "old-2"))
    return BaseRoute("base", 2048, copies, canary=CanaryRoute(name, percent, ("new-1",)))


def tried(percent: int, name: str = "rollout-1", tenant: str = "acme") -> set[str]:
    """Users whose requests go to the new copy."""
    route = base_route(percent, name)
    found = {user: passed_over(route, tenant, user) for user in USERS}
    assert set(found.values()) <= {("new-1",), ("old-1", "old-2")}, "one side or the other, whole"
    return {user for user, others in found.items() if others == ("old-1", "old-2")}


def test_new_copies_get_their_share_of_callers_and_keep_it_as_it_grows() -> None:
    five, fifty = tried(5), tried(50)
    assert 145 < len(five) < 255, "5 % of 4,000, four standard deviations"
    assert 1873 < len(fifty) < 2127
    assert five < fifty
    assert tried(5) == five, "the same callers each time"
    assert five not in (tried(5, "rollout-2"), tried(5, tenant="umbrella")), (
        "not the same ones in each rollout"
    )


def test_without_a_canary_no_copy_is_passed_over() -> None:
    assert passed_over(BaseRoute("base", 2048, base_route(5).copies), "acme", "u") == ()
