"""The wire between the planes: what is written reads back equal, and what is malformed is named."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire import RouteChange, RouteTable, TenantRoute, UsageEvent, WireError, uuid7
from tests.gateway.conftest import route_table

EVENT: dict[str, Any] = {
    "event_id": "e", "tenant": "acme", "project": "p", "key_id": "k", "request_id": "r", "attempt": 1,
    "requested_model": "bot", "alias": "", "arm": "", "adapter": "", "base_model": "base",
    "backend": "worker", "endpoint": "c", "status": "ok", "error_code": "", "prompt_tokens": 1,
    "cached_tokens": 0, "completion_tokens": 2, "estimated": False, "ttft_ms": None, "duration_ms": 1.5,
    "started_at": 5, "gateway_id": "g",
}  # fmt: skip


@given(st.text(), st.integers(0, 1 << 50), st.one_of(st.none(), st.floats(0, 1e9)))
def test_usage_events_round_trip(text: str, count: int, ttft: float | None) -> None:
    event = UsageEvent(**{**EVENT, "requested_model": text, "prompt_tokens": count, "ttft_ms": ttft})
    assert UsageEvent.from_json(event.to_json()) == event


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"prompt_tokens": "1"}, "prompt_tokens"),
        ({"extra": 1}, "extra"),
        ({"status": 3}, "status"),
        ({"attempt": None}, "attempt"),
    ],
)
def test_malformed_usage_events_name_the_field(change: dict[str, Any], said: str) -> None:
    with pytest.raises(WireError, match=said):
        UsageEvent.from_json(json.dumps({**EVENT, **change}))


@pytest.mark.parametrize("text", ["", "[]", "nonsense", "{}"])
def test_what_is_no_event_is_refused(text: str) -> None:
    with pytest.raises(WireError):
        UsageEvent.from_json(text)


def test_tables_round_trip() -> None:
    table = route_table("http://a", "http://b")
    assert RouteTable.from_json(json.dumps(table.to_dict())) == table


def test_changes_round_trip_and_apply() -> None:
    table = route_table("http://a")
    bot = table.adapters["acme"]["bot"]
    changes = [
        RouteChange(1, "keys/k1", None),
        RouteChange(2, "adapters/acme/second", bot),
        RouteChange(3, "adapters/acme/third", bot),
        RouteChange(4, "adapters/acme/bot", None),
        RouteChange(5, "keys/k2", None),
        RouteChange(6, "tenants/new", TenantRoute("New", "cc33", ("base",))),
        RouteChange(7, "bases/other", table.bases["base"]),
    ]
    assert [RouteChange.from_json(change.to_json()) for change in changes] == changes
    after = table.apply(changes)
    assert after.version == 7
    # The first change is not newer than the table: its removal of k1 is skipped.
    assert list(after.keys) == ["k1"]
    assert sorted(after.adapters["acme"]) == ["second", "third"]
    assert after.tenants["new"].bases == ("base",)
    assert "bot" in table.adapters["acme"], "a table never changes"


def test_a_gap_is_noticed() -> None:
    with pytest.raises(WireError, match="does not follow"):
        route_table("http://a").apply([RouteChange(3, "keys/k1", None)])


@pytest.mark.parametrize("path", ["colours/red", "version/1"])
def test_a_change_of_an_unknown_kind_is_refused(path: str) -> None:
    with pytest.raises(WireError):
        RouteChange.from_json(json.dumps({"version": 2, "path": path, "entry": None}))


def test_uuid7_is_ordered_by_time() -> None:
    drawn = []
    for _ in range(20):
        drawn.append(uuid7())
        time.sleep(0.002)
    assert drawn == sorted(drawn)
    parsed = [uuid.UUID(text) for text in drawn]
    assert all(item.version == 7 and item.variant == uuid.RFC_4122 for item in parsed)
    assert abs((parsed[-1].int >> 80) / 1000 - time.time()) < 5
    assert len({uuid7() for _ in range(2000)}) == 2000
