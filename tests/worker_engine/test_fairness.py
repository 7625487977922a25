"""Tenants' shares: by weight, without credit for idle hours, and with bounded memory."""

from __future__ import annotations

import math
import random
from collections import Counter
from itertools import pairwise

import pytest

from tests.worker_engine.simulation import Simulation, adapter
from worker_engine import fairness
from worker_engine.fairness import Accounts
from worker_engine.waiting_queue import AGING_SECONDS


def test_who_comes_back_is_lifted_to_those_that_wait() -> None:
    accounts = Accounts()
    busy = accounts.enqueue("busy", 1)
    busy.charge_input(1000)
    idle = accounts.enqueue("idle", 1)
    assert idle.served == busy.served == 1000
    accounts.dequeue(idle)
    busy.charge_input(500)
    accounts.enqueue("idle", 1)
    assert idle.served == 1500
    idle.charge_output()
    assert idle.served == 1502
    accounts.enqueue("idle", 1)
    assert idle.served == 1502, "who waits already keeps its counter"


def test_who_comes_to_an_empty_queue_starts_where_the_last_left() -> None:
    accounts = Accounts()
    first = accounts.enqueue("first", 1)
    first.charge_input(700)
    accounts.dequeue(first)
    assert accounts.enqueue("second", 1).served == 700


def test_who_runs_but_does_not_wait_is_lifted_too() -> None:
    """Otherwise a tenant whose requests never wait would save up its unused share."""
    accounts = Accounts()
    running = accounts.enqueue("running", 1)
    accounts.dequeue(running)
    running.num_running = 1
    accounts.enqueue("busy", 1).charge_input(800)
    accounts.requeue(running)
    assert running.served == 800


def test_who_comes_back_stands_beside_the_least_served() -> None:
    accounts = Accounts(burst=30)
    for tenant, served in (("much", 1000), ("little", 100)):
        accounts.enqueue(tenant, 1).served = served
    assert accounts.enqueue("new", 1).served == 70


def test_who_has_had_more_than_the_rest_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forgotten tenant would come back as a new one, as would one within the burst."""
    monkeypatch.setattr(fairness, "MAX_ACCOUNTS", 4)
    accounts = Accounts(burst=50)
    for tenant, served in (("more", 500), ("within", 60), ("less", 40)):
        account = accounts.enqueue(tenant, 1)
        accounts.dequeue(account)
        account.served = served
    accounts.enqueue("waits", 1).served = 100
    accounts.enqueue("new", 1)
    assert {account.tenant for account in accounts} == {"more", "within", "waits", "new"}


def test_weights_divide_what_is_charged() -> None:
    heavy = Accounts().enqueue("heavy", 4)
    heavy.charge_input(100)
    heavy.charge_output()
    assert heavy.served == pytest.approx(25.5)


def test_idle_accounts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fairness, "MAX_ACCOUNTS", 10)
    accounts = Accounts()
    active = accounts.enqueue("active", 1)
    active.charge_input(1000)
    for number in range(50):
        account = accounts.enqueue(str(number), 1)
        accounts.dequeue(account)
    assert len(accounts) <= 11
    assert active in list(accounts)


def tokens_by_tenant(run: Simulation, seconds: float) -> Counter[str]:
    """Tokens generated for each tenant until `seconds` have passed."""
    served: Counter[str] = Counter()
    while run.now < seconds:
        for chunk in run.step():
            if chunk.count == 1:
                served[chunk.sequence.account.tenant] += 1
    return served


@pytest.mark.parametrize(("weight", "share"), [(1.0, 0.5), (3.0, 0.75)])
def test_backlogged_tenants_share_by_weight(weight: float, share: float) -> None:
    """Both always wait; one sends twice as many requests and longer prompts without a gain."""
    run = Simulation(max_num_seqs=4)
    for number in range(400):
        run.add(f"a{number}", [number % 7] * 20, 20, tenant="a", tenant_weight=weight)
        run.add(f"b{number}", [number % 5] * 20, 20, tenant="b")
        run.add(f"b{number}'", [number % 5] * 20, 20, tenant="b")
    served = tokens_by_tenant(run, 20)
    assert served["a"] / served.total() == pytest.approx(share, abs=0.03)


def test_service_differs_by_a_bound_at_every_moment() -> None:
    """The paper's bound: 2 max(wp Linput, wq M), M the tokens of a full batch, between two that wait."""
    run = Simulation(max_num_seqs=8)
    draw = random.Random(1)
    for number in range(300):
        for tenant in "ab":
            length = draw.randrange(1, 60) if tenant == "a" else 10
            run.add(f"{tenant}{number}", [1] * length, draw.randrange(1, 60), tenant=tenant)
    a, b = run.scheduler.accounts
    while a.num_waiting and b.num_waiting:
        run.step()
        assert abs(a.served - b.served) <= 2 * max(60, 2 * 8 * 60)


def test_higher_priorities_go_first_and_age_saves_the_rest() -> None:
    """High-priority requests never stop coming; the ordinary one enters once its age makes up for it."""
    run = Simulation(max_num_seqs=2)
    ordinary = run.add("ordinary", [1] * 10, 5, tenant="a")
    number = 0
    while ordinary.admitted is None:
        while len(run.live) < 6:
            run.add(f"high{number}", [2] * 10, 20, tenant="b", priority=2)
            number += 1
        run.step()
        assert run.now < 100, "it starves"
    assert run.now == pytest.approx(2 * AGING_SECONDS, abs=1)
    run.run()
    late, early = run.add("late", [1], 1), run.add("early", [1], 1, priority=1)
    run.run()
    assert early.admitted is not None
    assert late.admitted is not None
    assert early.admitted <= late.admitted


def test_a_backlog_gains_nothing_by_its_age() -> None:
    """A flood waits for minutes with one high-priority request: newcomers are still served in turn."""
    run = Simulation(max_num_seqs=2)
    for number in range(600):
        run.add(f"flood{number}", [1] * 10, 20, tenant="flood")
    run.add("high", [1], 1, tenant="other", priority=3)
    while run.now < 4 * AGING_SECONDS:
        run.step()
    run.add("high again", [1], 1, tenant="other", priority=3)
    light = run.add("light", [2] * 10, 5, tenant="light")
    started = run.now
    while light.admitted is None:
        run.step()
    assert light.admitted - started < 0.5


def test_one_request_of_many_choices_does_not_hold_up_its_tenants_others() -> None:
    """128 choices on 4 rows: another request of the tenant gets the next row that is free, not the 125th."""
    run = Simulation(max_num_seqs=4)
    choices = [run.add(f"many{place}", [1] * 10, 20, tenant="a", place=place) for place in range(128)]
    for _ in range(3):
        run.step()
    others = [run.add(f"few{number}", [2] * 10, 20, tenant="a") for number in range(2)]
    pair = [run.add(f"pair{place}", [3] * 10, 20, tenant="a", place=place) for place in range(2)]
    run.run()
    order = sorted([*choices, *others, *pair], key=lambda sequence: (sequence.admitted or 0, sequence.turn))
    # Of the round that had begun a choice comes first, then all of the next round in their order.
    assert order[4] is choices[4]
    assert order[5:8] == [*others, pair[0]]
    assert order[8:10] == [choices[5], pair[1]]
    assert order[10:] == choices[6:]


def test_many_choices_are_not_held_up_for_ever_by_others() -> None:
    """A tenant's single requests never stop coming; each round one of the choices gets in."""
    run = Simulation(max_num_seqs=2)
    choices = [run.add(f"many{place}", [1] * 4, 2, tenant="a", place=place) for place in range(8)]
    number = 0
    while any(sequence.admitted is None for sequence in choices):
        while len(run.scheduler.waiting) < 12:
            run.add(f"one{number}", [2] * 4, 2, tenant="a")
            number += 1
        run.step()
        assert number < 400, "it starves"


def test_adapters_in_a_batch_are_bounded_and_none_starves() -> None:
    """Two slots; requests of two adapters never stop coming, and a third's request still gets in soon."""
    run = Simulation(max_num_seqs=8, max_adapters=2)
    for number in range(40):
        run.add(f"busy{number}", [1] * 10, 30, uses=adapter(number % 2))
    run.step()
    other = run.add("other", [1] * 10, 5, uses=adapter(7))
    base = run.add("base", [1] * 10, 5)
    number = 0
    while other.admitted is None:
        while len(run.live) < 60:
            run.add(f"more{number}", [1] * 10, 30, uses=adapter(number % 2))
            number += 1
        run.step()
        run.check()
        assert number < 100, "it starves"
    assert base.admitted is not None, "a sequence without an adapter needs no slot"
    run.run()


def test_requests_of_other_adapters_pass_one_that_must_wait() -> None:
    run = Simulation(max_num_seqs=8, max_adapters=1)
    run.add("first", [1] * 10, 30, uses=adapter(1))
    run.step()
    blocked = run.add("blocked", [1] * 10, 5, uses=adapter(2))
    passing = run.add("passing", [1] * 10, 5, uses=adapter(1))
    run.step()
    assert passing.admitted is not None
    assert (blocked.admitted, blocked.num_bypassed) == (None, 1)
    run.run()


def test_a_tenant_below_its_share_gets_an_adapter_slot() -> None:
    run = Simulation(max_num_seqs=8, max_adapters=4)
    for number in range(32):
        run.add(f"flood{number}", [1] * 10, 1000, uses=adapter(number % 4), tenant="flood")
    for _ in range(5):
        run.step()
    light = run.add("light", [1] * 10, 5, uses=adapter(9), tenant="light")
    run.step()
    run.check()
    assert light.admitted is not None


def test_priorities_are_not_preempted_by_shares() -> None:
    run = Simulation(max_num_seqs=4)
    for number in range(4):
        run.add(f"high{number}", [1] * 10, 500, tenant="a", priority=1)
    run.step()
    low = run.add("low", [1], 1, tenant="b")
    for _ in range(20):
        run.step()
    assert low.admitted is None
    assert run.scheduler.num_preemptions == 0


def p99(values: list[float]) -> float:
    return sorted(values)[math.ceil(len(values) * 0.99) - 1]


def ttfts(flood: float, *, seconds: float = 240, seed: int = 7) -> list[float]:
    """Return times to first token of a tenant with 2 requests/s while another sends `flood` requests/s.

    Poisson arrivals, prompts of 30-200 tokens, completions of 20-120, 16 rows: the worker serves about
    8.4 requests/s, so 4.2 are the fair share of either.
    """
    run, draw = Simulation(max_num_seqs=16, checked=False), random.Random(seed)
    arrivals = []
    for tenant, rate in (("light", 2.0), ("flood", flood)):
        at = draw.expovariate(rate)
        while at < seconds:
            arrivals.append((at, tenant))
            at += draw.expovariate(rate)
    arrivals.sort()
    came: dict[str, float] = {}
    while (arrivals or run.live) and run.now < seconds:
        while arrivals and arrivals[0][0] <= run.now:
            at, tenant = arrivals.pop(0)
            name = f"{tenant}{len(came)}"
            came[name] = at
            # A flood's excess is refused by the limit on a tenant's queue.
            if tenant == "light" or sum(key.startswith("flood") for key in run.live) < 256:
                prompt = [draw.randrange(250) for _ in range(draw.randrange(30, 200))]
                run.add(name, prompt, draw.randrange(20, 120), tenant=tenant)
        if run.scheduler.idle:
            run.now = max(run.now, arrivals[0][0]) if arrivals else seconds
        else:
            run.step()
    return [
        run.first_token[name] - at
        for name, at in came.items()
        if name.startswith("light") and name in run.first_token
    ]


@pytest.mark.parametrize("seed", [6, pytest.param(7, marks=pytest.mark.slow)])
@pytest.mark.costly("a flood of requests")
def test_a_flood_leaves_the_others_p99_ttft(seed: int) -> None:
    """Ten times its fair share against its fair share, on a clock that only steps move."""
    fair, flooded = ttfts(4.2, seed=seed), ttfts(42.0, seed=seed)
    assert len(flooded) > 450
    assert p99(flooded) <= 1.5 * p99(fair), (p99(flooded), p99(fair))


def test_tokens_come_steadily_to_who_stays_below_its_share() -> None:
    """A flood may not preempt the light tenant's sequences: no gap between its tokens but a step's."""
    run = Simulation(max_num_seqs=4)
    light = run.add("light", [1] * 10, 200, tenant="light")
    times = []
    for number in range(400):
        if number < 100:
            run.add(f"flood{number}", [2] * 50, 50, tenant="flood")
        before = light.num_completion_tokens
        run.step()
        if light.num_completion_tokens > before:
            times.append(run.now)
    assert len(times) == 200
    assert max(later - earlier for earlier, later in pairwise(times)) < 0.05


@pytest.mark.parametrize(("prompt", "completion"), [(400, 1), (1, 150)])
def test_large_requests_get_fewer_turns_than_small_ones(prompt: int, completion: int) -> None:
    """One row, two tenants that always wait: what a request costs, prompt or completion, counts."""
    run = Simulation(max_num_seqs=1, checked=False)
    for number in range(100):
        run.add(f"large{number}", [number] * prompt, completion, tenant="large")
    for number in range(400):
        run.add(f"small{number}", [number] * 10, 5, tenant="small")
    while len(run.ended) < 200:
        run.step()
    ended = Counter(name.rstrip("0123456789") for name in run.ended)
    assert ended["small"] > 8 * ended["large"] > 0
