"""The wire between the planes: what is written reads back equal, and what is malformed is named."""

from __future__ import annotations

import datetime as dt
import json
import re
import time
import uuid
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.base_routes import (
    AdapterHomes,
    BaseRoute,
    CanaryRoute,
    CopyRoute,
    SageMakerTarget,
    adapter_component,
)
from contracts.errors import ContractError
from contracts.keys import KeyRoute, KeyScope, OldSecret
from contracts.limits import BudgetPeriod, Limit, LimitsRoute, RateRoute, budget_period
from contracts.route_table import RouteChange, RouteTable, TenantRoute
from contracts.usage_event import UsageEvent, uuid7
from tests.gateway.conftest import route_table

EVENT: dict[str, Any] = {
    "event_id": "e",
    "tenant": "acme",
    "project": "p",
    "key_id": "k",
    "request_id": "r",
    "attempt": 1,
    "requested_model": "bot",
    "alias": "",
    "arm": "",
    "adapter": "",
    "base_model": "base",
    "operation": "",
    "backend": "worker",
    "endpoint": "c",
    "status": "ok",
    "error_code": "",
    "prompt_tokens": 1,
    "cached_tokens": 0,
    "completion_tokens": 2,
    "reasoning_tokens": 0,
    "images": 0,
    "estimated": False,
    "ttft_ms": None,
    "itl_ms": None,
    "duration_ms": 1.5,
    "started_at": 5,
    "gateway_id": "g",
}


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
    with pytest.raises(ContractError, match=said):
        UsageEvent.from_json(json.dumps({**EVENT, **change}))


@pytest.mark.parametrize("text", ["", "[]", "nonsense", "{}"])
def test_what_is_no_event_is_refused(text: str) -> None:
    with pytest.raises(ContractError):
        UsageEvent.from_json(text)


def test_tables_round_trip() -> None:
    table = route_table("http://a", "http://b")
    bot = table.adapters["acme"]["bot"]
    bot = replace(bot, splits={"prod": ((1, 90), (2, 10))}, fallbacks={"": ("base",), "prod": ("bot@v1",)})
    bot = replace(bot, created=1_700_000_000, aliases_created={"prod": 1_700_000_001})
    table = replace(table, adapters={**table.adapters, "acme": {"bot": bot}})
    assert RouteTable.from_snapshot(table.snapshot()) == table
    change = RouteChange(2, "adapters/acme/bot", bot)
    assert RouteChange.from_json(change.to_json()) == change


def test_keys_round_trip() -> None:
    scope = KeyScope(models=("bot",), networks=("192.0.2.0/24", "2001:db8::/32"))
    key = KeyRoute("acme", "ab" * 32, "p", 1.5, OldSecret("cd" * 32, 2.5), scope)
    table = RouteTable(1, keys={"k1": key, "k2": KeyRoute("acme", "ef" * 32)})
    assert RouteTable.from_snapshot(table.snapshot()) == table
    change = RouteChange(2, "keys/k1", key)
    assert RouteChange.from_json(change.to_json()) == change


@pytest.mark.parametrize("where", ["key", "scope"])
def test_a_key_with_an_unknown_restriction_is_refused_not_served_without_it(where: str) -> None:
    plain = asdict(KeyRoute("acme", "ab" * 32, scope=KeyScope(models=("bot",))))
    for value, served in ((None, True), (["monday"], False)):
        entry = {**plain, "weekdays": value} if where == "key" else plain
        if where == "scope":
            entry = {**plain, "scope": {**plain["scope"], "weekdays": value}}
        text = json.dumps({"version": 1, "path": "keys/k1", "entry": entry})
        before = RouteTable(0, keys={"k1": KeyRoute("acme", "ab" * 32)})
        assert ("k1" in before.apply([RouteChange.from_json(text)]).keys) == served
        head = json.dumps({"version": 1})
        snapshot = "\n".join([head, json.dumps({"path": "keys/k1", "entry": entry}), head, ""])
        assert ("k1" in RouteTable.from_snapshot(snapshot).keys) == served


def test_a_key_of_an_older_control_plane_is_read() -> None:
    text = '{"version": 1, "path": "keys/k", "entry": {"tenant": "a", "secret_sha256": "x", "project": "p"}}'
    assert RouteChange.from_json(text).entry == KeyRoute("a", "x", "p")


@pytest.mark.parametrize("cut", [0, 1, 2, 3, -2, -1])
def test_a_snapshot_without_its_frame_is_torn(cut: int) -> None:
    """Its first and last line frame it; an entry that is missing is simply not there."""
    lines = route_table("http://a").snapshot().splitlines()
    del lines[cut]
    text = "\n".join(lines)
    if cut in (0, -1):
        with pytest.raises(ContractError):
            RouteTable.from_snapshot(text)
    else:
        assert RouteTable.from_snapshot(text) != route_table("http://a")


_TGI = SageMakerTarget("eu-central-1", "e", "t", "name", container="tgi")


def test_copies_of_every_kind_round_trip() -> None:
    copies = (
        CopyRoute("w", "worker", "http://w"),
        CopyRoute("v", "openai_http", "http://v", loads_adapters=True),
        CopyRoute(
            "s", "sagemaker", "", sagemaker=SageMakerTarget("eu-central-1", "e", "c", "name", "openai")
        ),
        CopyRoute("t", "sagemaker", "", sagemaker=replace(_TGI, loaded=("t_a.a_b.v1.0123456789ab",))),
    )
    homes = {"t_acme.a_bot.v1.0123456789ab": AdapterHomes(("w",), ("v", "s"))}
    canary = CanaryRoute("rollout-7", 5, ("v",))
    base = BaseRoute(
        "base", 2048, copies, homes=homes, canary=canary, dropped_parameters=("seed", "thinking")
    )
    change = RouteChange(2, "bases/base", base)
    assert RouteChange.from_json(change.to_json()) == change


def test_a_base_of_an_older_control_plane_has_no_canary() -> None:
    entry = {
        "served_name": "base",
        "max_model_len": 8,
        "copies": [{"id": "a", "kind": "worker", "url": "http://a"}],
    }
    text = json.dumps({"version": 1, "path": "bases/base", "entry": entry})
    route = RouteChange.from_json(text).entry
    assert isinstance(route, BaseRoute)
    assert (route.canary, route.dropped_parameters) == (None, ())
    written = json.loads(
        RouteChange(1, "bases/base", replace(route, canary=CanaryRoute("r", 5, ("a",)))).to_json()
    )
    entry, later = (
        written["entry"],
        (
            "canary",
            "homes",
            "hold_seconds",
            "dropped_parameters",
            "created",
            "architecture",
            "quantization",
            "absent",
            "image_tokens",
        ),
    )
    assert {name for name in entry if name not in later} == {"served_name", "max_model_len", "copies"}, (
        "what an older gateway reads stands where it stood"
    )


@given(st.from_regex(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}", fullmatch=True).filter(lambda name: len(name) < 64))
def test_an_adapters_component_has_a_name_that_sagemaker_takes(component: str) -> None:
    first = adapter_component(component, "t_acme.a_bot.v1.0123456789ab")
    assert re.fullmatch(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}", first)
    assert len(first) <= 63
    assert first == adapter_component(component, "t_acme.a_bot.v1.0123456789ab")
    assert first != adapter_component(component, "t_acme.a_bot.v2.0123456789ab")
    assert first != adapter_component(component + "x", "t_acme.a_bot.v1.0123456789ab")


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
    with pytest.raises(ContractError, match="does not follow"):
        route_table("http://a").apply([RouteChange(3, "keys/k1", None)])


@pytest.mark.parametrize("path", ["colours/red", "version/1"])
def test_a_change_of_an_unknown_kind_moves_the_version_alone(path: str) -> None:
    change = RouteChange.from_json(json.dumps({"version": 2, "path": path, "entry": {"hue": 3}}))
    table = route_table("http://a")
    after = table.apply([change, RouteChange(3, "keys/k2", None)])
    assert (after.version, list(after.keys)) == (3, ["k1"])


def test_unknown_fields_and_limits_are_passed_over() -> None:
    table = route_table("http://a")
    red = {"colour": "red"}
    limits = [{"kind": "requests", "amount": 3, **red}, {"kind": "smiles", "amount": 1}]
    copy = {"id": "c", "kind": "worker", "url": "http://a", **red}
    entries = {
        "keys/k1": {**asdict(table.keys["k1"]), "colour": None},
        "bases/base": {"served_name": "base", "max_model_len": 8, "copies": [copy], **red},
        "limits/tenant:acme": {"limits": limits, **red},
        "rates/base": {"input_nano": 1, "cached_input_nano": 2, "output_nano": 3, **red},
        "colours/x": red,
    }
    head = json.dumps({"version": 4, **red})
    lines = [json.dumps({"path": path, "entry": entry}) for path, entry in entries.items()]
    read = RouteTable.from_snapshot("\n".join([head, *lines, head, ""]))
    assert (read.version, read.keys) == (4, {"k1": table.keys["k1"]})
    assert read.bases["base"].copies == (CopyRoute("c", "worker", "http://a"),)
    assert read.limits == {"tenant:acme": LimitsRoute((Limit("requests", 3),))}
    assert read.rates == {"base": RateRoute(1, 2, 3)}
    assert read.entry("colours/x") is None


def test_limits_and_rates_cross_in_snapshots_and_deltas() -> None:
    budget = Limit("budget", 5_000, period="day", alert=4_000)
    limits = LimitsRoute((Limit("tokens", 7, 6.0), budget), priority=2)
    changes = [
        RouteChange(2, "limits/tenant:acme", limits),
        RouteChange(3, "rates/base/acme/bot", RateRoute(1, 2, 3)),
    ]
    assert [RouteChange.from_json(change.to_json()) for change in changes] == changes
    after = route_table("http://a").apply(changes)
    assert RouteTable.from_snapshot(after.snapshot()) == after
    assert (after.limits["tenant:acme"], after.rates["base/acme/bot"]) == (limits, RateRoute(1, 2, 3))


@pytest.mark.parametrize(
    ("period", "now", "name", "end"),
    [
        ("day", "2026-12-31T23:59:59+00:00", "2026-12-31", "2027-01-01T00:00:00+00:00"),
        ("month", "2026-12-31T23:59:59+00:00", "2026-12", "2027-01-01T00:00:00+00:00"),
        ("month", "2028-02-29T00:00:00+00:00", "2028-02", "2028-03-01T00:00:00+00:00"),
        ("month", "2026-03-01T01:00:00+02:00", "2026-02", "2026-03-01T00:00:00+00:00"),
    ],
)
def test_periods_are_utc(period: BudgetPeriod, now: str, name: str, end: str) -> None:
    found = budget_period(period, dt.datetime.fromisoformat(now))
    assert found == (name, dt.datetime.fromisoformat(end))


def test_uuid7_is_ordered_by_time() -> None:
    drawn = []
    began = time.time()
    for _ in range(20):
        drawn.append(uuid7())
        time.sleep(0.002)
    assert drawn == sorted(drawn)
    parsed = [uuid.UUID(text) for text in drawn]
    assert all(item.version == 7 and item.variant == uuid.RFC_4122 for item in parsed)
    # Milliseconds of Unix time, rounded down.
    assert began - 0.001 <= (parsed[-1].int >> 80) / 1000 <= time.time()
    assert len({uuid7() for _ in range(2000)}) == 2000
