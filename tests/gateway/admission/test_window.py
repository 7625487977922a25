"""Corrections of token usage that a gateway sends to Redis, repeated after a failed call."""

from __future__ import annotations

import math

import pytest

from contracts.limits import Limit
from gateway.admission import Broker, line
from gateway.admission.window import WindowAccount


@pytest.fixture
def window(monkeypatch: pytest.MonkeyPatch) -> WindowAccount:
    broker = Broker(line("redis://127.0.0.1:1/0"), "slot")
    monkeypatch.setattr(broker, "redis_ms", lambda: 600_000.0)
    broker.away, broker.gateways, broker.dead_at = False, 1, math.inf
    return WindowAccount(broker, "tenant:acme", Limit("tokens", 1000))


def returned(window: WindowAccount) -> dict[int, int]:
    """Return the amounts given back by slice, which the next call to Redis reports; negative: used."""
    number, *pairs = window.operation()[6:]
    found = dict(zip(pairs[::2], pairs[1::2], strict=True))
    assert len(found) == number
    return {int(slice_): int(amount) for slice_, amount in found.items()}


def test_more_than_was_reserved_is_reported_until_a_call_succeeds(window: WindowAccount) -> None:
    window.settle(7, reserved=10, actual=25)
    [(slice_, amount)] = returned(window).items()
    assert amount == -15
    window.settle(7, reserved=10, actual=11)
    window.failed()
    assert returned(window) == {slice_: -16}, "what the failed call reported, and what came since"
    assert returned(window) == {}


def test_less_than_was_reserved_is_reported_once(window: WindowAccount) -> None:
    window.settle(7, reserved=25, actual=10)
    assert returned(window) == {7: 15}
    window.failed()
    assert returned(window) == {}, "an amount given back twice would exceed the limit"


def test_a_server_that_lost_its_data_is_told_what_the_lease_holds_and_has_spent(
    window: WindowAccount,
) -> None:
    window.slice, window.left = 3, 12
    window.take(6)
    window.forgotten()
    assert returned(window) == {3: -12}
