"""The Lua script on a real server: whatever is asked in whatever order, its sums hold."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.admission.script import EPOCH, GATEWAY_TTL_MS, GATEWAYS, LEASE, QUARANTINE_MS, SLICES, SLOTS

LIMIT, WIDTH = 100, 3


class Script:
    """Calls it as gateway processes do."""

    def __init__(self, url: str) -> None:
        self.client = redis.Redis.from_url(url)
        self._call = self.client.register_script(LEASE)

    def fresh(self) -> None:
        """An emptied server whose quarantine is over."""
        self.client.flushdb()
        self.client.hset(EPOCH, mapping={"id": "life", "until": 0})

    def raw(self, me: str, key: str = "", *fields: int | str, epoch: str = "life", slot: str = "") -> Any:
        keys = [GATEWAYS, EPOCH, SLOTS, *([key] if key else [])]
        return self._call(keys=keys, args=[me, slot or me, epoch, *fields])

    def __call__(self, me: str, key: str, *fields: int | str) -> list[int]:
        answer: list[int] = self.raw(me, key, *fields)[1]
        return answer


@pytest.fixture(scope="module")
def script(redis_server: str) -> Iterator[Script]:
    script = Script(redis_server)
    script.fresh()
    yield script
    script.client.close()


DRAWS = st.lists(
    st.tuples(
        st.sampled_from("abc"),  # who
        st.integers(0, 40),  # first
        st.integers(0, 60),  # more
        st.integers(0, 50),  # want
        st.integers(0, 100),  # percent of an earlier grant given back
        st.sampled_from([0, 0, 0, 1, 4, 40, 250]),  # milliseconds until the next
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(draws=DRAWS)
@pytest.mark.costly("a property over many requests")
def test_no_window_is_ever_over_its_limit(
    script: Script, draws: list[tuple[str, int, int, int, int, int]]
) -> None:
    script.fresh()
    charged: dict[int, int] = defaultdict(int)
    grants: list[tuple[int, int]] = []
    for who, first, more, want, percent, pause in draws:
        back: list[int] = []
        if grants and percent:
            slice_, amount = grants.pop()
            back = [slice_, amount * percent // 100]
        granted, slice_, ms, free, wait = script(
            who, "w", "w", LIMIT, WIDTH, first, first + more, want, len(back) // 2, *back
        )
        if back:
            charged[back[0]] -= back[1]
        assert (granted == 0) or (granted >= first > 0)
        assert granted <= first + more + want
        assert 0 < ms <= 2 * WIDTH
        charged[slice_] += granted
        if granted:
            grants.append((slice_, granted))
        for end in list(charged):
            # Any span of the window's length touches at most SLICES + 1 slices.
            assert sum(n for at, n in charged.items() if end - SLICES <= at <= end) <= LIMIT
        live = {int(f): int(n) for f, n in script.client.hgetall("w").items() if f.isdigit()}
        assert sum(live.values()) == int(script.client.hget("w", "t") or 0)
        assert free == LIMIT - sum(live.values())
        if first and not granted:
            assert free < first
            assert wait > 0
            if first <= LIMIT:
                assert wait <= (SLICES + 2) * WIDTH
        time.sleep(pause / 1000)


@pytest.mark.costly("a property over many requests")
def test_a_greedy_caller_gets_the_limit_in_every_window_and_no_more(script: Script) -> None:
    # Wide enough that some draws fall into the last quarter of a slice.
    script.fresh()
    width = 8
    charged: dict[int, int] = defaultdict(int)
    end = time.monotonic() + 3.2 * SLICES * width / 1000
    while time.monotonic() < end:
        header, (granted, slice_, ms, _, _) = script.raw("a", "w", "w", LIMIT, width, 1, 7, 0, 0)
        charged[slice_] += granted
        # The lease ends before the slice that it is charged to.
        assert header[3] + ms <= (slice_ + 1) * width
    for last in charged:
        assert sum(n for at, n in charged.items() if last - SLICES <= at <= last) <= LIMIT
    assert sum(charged.values()) >= 3 * LIMIT


def test_what_is_told_to_wait_for_comes(script: Script) -> None:
    script.fresh()
    for amount in (30, 50, 20):
        script("a", "w", "w", LIMIT, WIDTH, amount, amount, 0, 0)
        time.sleep(0.03)
    granted, _, _, _, wait = script("a", "w", "w", LIMIT, WIDTH, 60, 60, 0, 0)
    assert granted == 0
    time.sleep(wait / 1000 + 0.001)
    assert script("a", "w", "w", LIMIT, WIDTH, 60, 60, 0, 0)[0] == 60


def test_processes_share_what_is_drawn_ahead(script: Script) -> None:
    script.fresh()
    for me in "abcd":
        script.raw(me)
    assert script("a", "w", "w", 1000, 60_000, 1, 1, 500, 0)[0] == 1 + (1000 - 1) // 8


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.integers(-3, 3),
            st.integers(0, 3),
            st.integers(0, 6),
            st.integers(0, 6),
        ),
        min_size=1,
    )
)
def test_places_never_exceed_their_limit(script: Script, steps: list[tuple[str, int, int, int, int]]) -> None:
    script.fresh()
    held = dict.fromkeys("abc", 0)
    for who, change, keep, waiting, want in steps:
        # A process uses and keeps no more than it holds.
        used = min(held[who], max(0, held[who] + change))
        keep = min(keep, held[who] - used)
        held[who], free = script(who, "c", "c", 10, used, keep, waiting, want)
        assert held[who] >= used + keep
        assert sum(held.values()) <= 10
        assert free == 10 - sum(held.values())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 300), st.integers(0, 300), st.integers(0, 100)),
        min_size=1,
    )
)
def test_a_budget_is_never_overspent(script: Script, steps: list[tuple[str, int, int, int]]) -> None:
    script.fresh()
    script.client.hset("b", mapping={"base": 200, "cut": 1})
    hold, spent = dict.fromkeys("ab", 0), 0
    for who, need, want, percent in steps:
        part = hold[who] * percent // 100
        hold[who] -= part
        spent += part
        granted, free, gone = script(who, "b", "b", 1000, part, hold[who], need, need, want)
        hold[who] += granted
        assert gone == 200 + spent
        assert free == 1000 - gone - sum(hold.values())
        assert free >= 0
        assert granted == 0 or granted >= need > 0


def test_reports_below_the_cut_are_in_the_baseline(script: Script) -> None:
    script.fresh()
    script.client.hset("b", mapping={"base": 100, "cut": 1})
    assert script("a", "b", "b", 1000, 50, 0, 0, 0, 0) == [0, 850, 150]
    now = script.client.time()[0] * 1000
    script.client.hset("b", mapping={"base": 130, "cut": now - 60_000})
    assert script("a", "b", "b", 1000, 0, 0, 0, 0, 0)[2] == 180, "reported after the cut: on top of it"
    script.client.hset("b", mapping={"base": 150, "cut": now + 60_000})
    assert script("a", "b", "b", 1000, 0, 0, 0, 0, 0)[2] == 150


def test_a_budget_without_a_baseline_grants_nothing(script: Script) -> None:
    script.fresh()
    assert script("a", "b", "b", 1000, 0, 0, 1, 1, 0)[0] == -1


def test_a_dead_process_frees_its_places_and_leaves_its_budget_spent(script: Script) -> None:
    script.fresh()
    script.client.hset("b", mapping={"base": 0, "cut": 1})
    assert script("a", "c", "c", 10, 0, 0, 10, 0)[0] == 10
    assert script("a", "b", "b", 1000, 0, 0, 400, 400, 0)[0] == 400
    assert script("b", "c", "c", 10, 0, 0, 1, 0)[0] == 0
    # It was last heard of too long ago, while others called.
    now = script.client.time()[0] * 1000
    script.client.zadd(GATEWAYS, {"a": now - GATEWAY_TTL_MS - 1000})
    assert script("b", "c", "c", 10, 0, 0, 1, 0)[0] == 1
    assert script("b", "b", "b", 1000, 0, 0, 0, 0, 0) == [0, 600, 400]


def test_what_a_dead_process_kept_is_cut_to_what_others_left(script: Script) -> None:
    script.fresh()
    assert script("a", "c", "c", 10, 0, 0, 6, 0)[0] == 6
    now = script.client.time()[0] * 1000
    script.raw("b")
    script.client.zadd(GATEWAYS, {"a": now - GATEWAY_TTL_MS - 1000})
    assert script("b", "c", "c", 10, 0, 0, 9, 0)[0] == 9
    # The gateway is alive after all: its requests go on, but another gateway took its spare places.
    assert script("a", "c", "c", 10, 1, 5, 2, 3) == [1, 0]


def test_a_restart_on_the_same_log_frees_its_places_at_once(script: Script) -> None:
    script.fresh()
    script.raw("old", "c", "c", 10, 10, 0, 0, 0, slot="s1")
    assert script.raw("new", "c", "c", 10, 0, 0, 1, 0, slot="s1")[1] == [1, 9]


def test_an_outage_of_redis_is_nobodys_death(script: Script) -> None:
    script.fresh()
    script("a", "c", "c", 10, 10, 0, 0, 0)
    now = script.client.time()[0] * 1000
    script.client.zadd(GATEWAYS, {"a": now - 60_000})
    assert script("b", "c", "c", 10, 0, 0, 1, 0)[0] == 0


def test_a_lost_server_grants_nothing_until_all_have_reported(script: Script) -> None:
    script.client.flushdb()
    header, *rest = script.raw("a", "w", "w", 100, 1000, 1, 1, 0, 0)
    assert rest == [], "the caller knew another life of the data: nothing was done"
    epoch, quarantine = header[0].decode(), header[1]
    assert QUARANTINE_MS - 500 < quarantine <= QUARANTINE_MS
    second = script.client.time()[0]
    answer = script.raw("a", "w", "w", 100, 1000, 1, 1, 0, 1, second, -70, epoch=epoch)
    assert answer[1][0] == 0
    script.client.hset(EPOCH, "until", 0)
    assert script.raw("a", "w", "w", 100, 1000, 1, 50, 0, 0, epoch=epoch)[1][0] == 30
