"""The usage explorer: groups, the others, the period before, its address, its exports, and what it costs."""

from __future__ import annotations

import csv
import datetime as dt
import html
import io
import json
import re
from typing import Any
from urllib.parse import parse_qs

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from contracts.adapters.reference import engine_name
from controlplane.metering.models import UsageHour, UsageRollup
from tests.controlplane.console.conftest import HOSTILE, Team

PATH = "/t/acme/usage/"
RANGE = {"start": "2026-03-02", "end": "2026-03-03"}
DAY = dt.date(2026, 3, 2)


@pytest.fixture
def dev(client: Client, acme: Team) -> Client:
    UsageRollup.objects.all().delete()
    client.force_login(acme.user)
    return client


def engine(adapter: str, version: int = 1, tenant: str = "acme") -> str:
    return engine_name(tenant=tenant, adapter=adapter, version=version, sha256="ab" * 32)


def used(prompt: int, *, day: dt.date = DAY, **values: Any) -> dict[str, Any]:
    return {
        "day": day,
        "tenant": "acme",
        "project": "default",
        "key_id": "k",
        "adapter": "",
        "alias": "",
        "base_model": "tiny",
        "backend": "worker",
        "status": "ok",
        "requests": 1,
        "prompt_tokens": prompt,
        "cached_tokens": 0,
        "completion_tokens": 0,
        **values,
    }


def book(*rows: dict[str, Any]) -> None:
    UsageRollup.objects.bulk_create(UsageRollup(**row) for row in rows)


def text_of(client: Client, query: dict[str, Any] | None = None, status: int = 200) -> str:
    answer = client.get(PATH, {**RANGE, **(query or {})})
    assert answer.status_code == status
    return answer.content.decode()


def chart(page: str) -> Any:
    (found,) = re.findall(r'id="usage-chart"[^>]* data-chart="([^"]*)"', page)
    return json.loads(html.unescape(found))


def exported(client: Client, **query: str) -> list[dict[str, str]]:
    answer = client.get("/t/acme/usage/export", {**RANGE, "form": "csv", **query})
    assert answer.status_code == 200
    return list(csv.DictReader(io.StringIO(answer.content.decode())))


def many(count: int) -> None:
    book(*(used((number + 1) * 10, adapter=engine(f"bot-{number:05}")) for number in range(count)))


def test_images_stand_beside_the_input(dev: Client) -> None:
    book(used(10, adapter=engine("pirate"), images=7), used(20))
    page = text_of(dev, {"group": "operation"})
    assert 'data-testid="total-images">7 images' in page
    assert sorted(row["images"] for row in exported(dev)) == ["0", "7", "7"]
    assert "images" not in text_of(dev, {"none": "adapter", "adapter": ""})


@pytest.mark.usefixtures("priced")
def test_the_largest_stand_by_themselves_and_the_others_together(dev: Client) -> None:
    many(20)
    rows = exported(dev)
    assert [row["adapter"] for row in rows[:2]] == ["bot-00019", "bot-00018"]
    assert [row["adapter"] for row in rows[-2:]] == ["12 others", "total"]
    assert int(rows[-2]["prompt_tokens"]) == sum(range(10, 130, 10))
    assert sum(int(row["prompt_tokens"]) for row in rows[:-1]) == int(rows[-1]["prompt_tokens"]) == 2100
    drawn = chart(text_of(dev))
    assert len(drawn["series"]) == 9
    assert drawn["times"] == ["2026-03-02", "2026-03-03"]
    assert [sum(part["values"][at] for part in drawn["series"]) for at in (0, 1)] == [2100, 0]
    assert "12 others" in text_of(dev)


@pytest.mark.parametrize(
    ("group", "values"),
    [
        ("adapter", {"pirate", ""}),
        ("version", {engine("pirate", 1), engine("pirate", 2), ""}),
        ("key", {"k", "k2"}),
        ("base", {"tiny", "other"}),
        ("operation", {"rerank", ""}),
        ("backend", {"worker", "vllm"}),
        ("project", {"default", "chat"}),
        ("alias", {"prod", ""}),
        ("status", {"ok", "error"}),
    ],
)
def test_each_group_and_each_filter(group: str, values: set[str], dev: Client) -> None:
    book(
        used(10, adapter=engine("pirate")),
        used(20, adapter=engine("pirate", 2), key_id="k2", project="chat", alias="prod"),
        used(40, backend="vllm", status="error", base_model="other", operation="rerank"),
    )
    rows = exported(dev, group=group)
    assert {row[group] for row in rows[:-1]} == values
    for row in rows[:-1]:
        only = {group: row[group]} if row[group] else {group: "", "none": group}
        alone = exported(dev, group="status", **only)
        assert alone[-1]["prompt_tokens"] == row["prompt_tokens"], row


def test_the_period_before_is_as_long_and_ends_the_day_before(dev: Client) -> None:
    book(
        used(30, adapter=engine("pirate")),
        used(10, adapter=engine("pirate"), day=dt.date(2026, 3, 1)),
        used(10, adapter=engine("gone"), day=dt.date(2026, 2, 28)),
        used(999, adapter=engine("pirate"), day=dt.date(2026, 2, 27)),
    )
    (row, total) = exported(dev)
    assert (row["before_prompt_tokens"], total["before_prompt_tokens"]) == ("10", "20")
    page = text_of(dev)
    assert "+200.0 %" in page
    assert "+50.0 %" in page
    assert "28 Feb" in page


@pytest.mark.parametrize("measure", ["tokens", "requests"])
def test_what_is_as_large_is_in_order_by_name(measure: str, dev: Client) -> None:
    book(
        *(used(7, adapter=engine(f"bot-{number:02}", version)) for number in range(20) for version in (1, 2))
    )
    rows = exported(dev, measure=measure)
    assert [row["adapter"] for row in rows[:8]] == [f"bot-{number:02}" for number in range(8)]
    assert {(row["prompt_tokens"], row["requests"]) for row in rows[:8]} == {("14", "2")}


@pytest.mark.usefixtures("priced")
def test_what_the_others_cost_is_known_where_their_prices_are(dev: Client) -> None:
    book(used(5_000, project="unknown", base_model="unpriced"))
    book(*(used(10 + number, project=f"p-{number}") for number in range(9)))
    book(used(10, project="p-0", day=dt.date(2026, 3, 1)))
    others, total = exported(dev, group="project")[-2:]
    assert (others["project"], total["price"]) == ("2 others", "unpriced")
    assert float(others["price"]) > 0
    assert (others["prompt_tokens"], others["before_prompt_tokens"]) == ("21", "10")


def test_an_adapter_that_is_called_as_none_of_ours_is_a_group(dev: Client) -> None:
    book(used(70, adapter="their own"), used(10, adapter=engine("their")), used(30, adapter="their own 2"))
    rows = exported(dev)
    assert [(row["adapter"], row["prompt_tokens"]) for row in rows[:3]] == [
        ("their own", "70"),
        ("their own 2", "30"),
        ("their", "10"),
    ]
    assert [part["values"][0] for part in chart(text_of(dev))["series"]] == [70, 30, 10]


@pytest.mark.usefixtures("priced")
@pytest.mark.parametrize("unpriced", [DAY, dt.date(2026, 3, 1)])
def test_where_a_price_is_unknown_nothing_is_compared(dev: Client, unpriced: dt.date) -> None:
    book(used(30), used(60, day=dt.date(2026, 3, 1)), used(5, day=unpriced, base_model="unpriced"))
    page = text_of(dev, {"measure": "price", "group": "project"})
    assert not re.search(r"[+-][0-9.]+ %", page)
    assert re.search(r"-[0-9.]+ %", text_of(dev, {"group": "project"})), "tokens are"


@pytest.mark.usefixtures("priced")
def test_what_has_no_price_stands_first_and_is_drawn_as_none(dev: Client) -> None:
    book(used(500, project="dear"), used(1, project="unknown", base_model="unpriced"))
    rows = exported(dev, measure="price", group="project")
    assert [(row["project"], row["price"] == "unpriced") for row in rows[:2]] == [
        ("unknown", True),
        ("dear", False),
    ]
    drawn = chart(text_of(dev, {"measure": "price", "group": "project"}))
    assert [part["values"][0] is None for part in drawn["series"]] == [True, False]
    assert drawn["series"][0]["values"][1] == 0, "nothing was used"
    assert drawn["unpriced"] == "unpriced"
    answer = dev.get(
        "/t/acme/usage/export", {**RANGE, "form": "json", "group": "project", "measure": "price"}
    )
    told = json.loads(answer.content)
    assert [(row["price"] is None, row["unpriced"]) for row in told["rows"]] == [(True, True), (False, False)]
    assert (told["total"]["price"], told["total"]["unpriced"]) == (None, True)


def test_what_has_no_adapter_and_no_alias_is_two_filters(dev: Client) -> None:
    book(used(10), used(20, adapter=engine("pirate")), used(40, alias="prod"))
    nothing = {"adapter": "", "alias": "", "none": ["adapter", "alias"], "group": "key"}
    page = text_of(dev, nothing)
    assert re.findall(r'<input type="hidden" name="none" value="(\w+)">', page) == ["adapter", "alias"]
    (link,) = re.findall(r'href="(\?[^"]+)" data-testid="only-alias"', page)
    link = link.replace("&amp;", "&")
    assert parse_qs(link[1:], keep_blank_values=True)["none"] == ["adapter"]
    page = dev.get(PATH + link).content.decode()
    assert 'data-testid="only-adapter"' in page
    assert 'data-testid="only-alias"' not in page


def test_hours_are_those_of_the_hourly_sums(dev: Client) -> None:
    row = used(50, adapter=engine("pirate"))
    book(row)
    UsageHour.objects.create(**row, hour=5)
    drawn = chart(text_of(dev, {"bucket": "hour"}))
    assert len(drawn["times"]) == 48
    assert drawn["series"][0]["values"][5] == 50


def test_the_address_holds_the_state(dev: Client) -> None:
    many(3)
    page = text_of(dev, {"group": "key", "measure": "requests", "adapter": "bot-00001", "bucket": "hour"})
    assert '<option value="key" selected>' in page
    assert 'data-testid="only-adapter"' in page
    links = [link.replace("&amp;", "&") for link in re.findall(r'href="(\?[^"]+)"', page)]
    (price,) = [link for link in links if "measure=price" in link]
    for kept in ("group=key", "adapter=bot-00001", "bucket=hour", "start=2026-03-02"):
        assert kept in price, kept
    answer = dev.get("/t/acme/usage/export" + price + "&form=json")
    told = json.loads(answer.content)
    assert (told["group"], told["bucket"], told["only"]) == ("key", "hour", {"adapter": "bot-00001"})
    assert told["rows"][0]["prompt_tokens"] == 20


@pytest.mark.parametrize(
    "query",
    [{"group": "tenant"}, {"bucket": "week"}, {"measure": "x"}, {"start": "soon"}, {"end": "2036-01-01"}],
)
def test_what_cannot_be_asked_is_said(query: dict[str, str], dev: Client) -> None:
    page = text_of(dev, query, 422)
    assert "notice-danger" in page
    assert dev.get("/t/acme/usage/export", {**RANGE, **query}).status_code == 400


def test_another_tenants_usage_is_in_nothing(dev: Client, globex: Team) -> None:
    book(used(7), used(500, tenant="globex", adapter=engine("secret", tenant="globex")))
    for query in ({}, {"key": globex.key.pk}, {"adapter": "secret"}):
        page = text_of(dev, query)
        for own in ('value="secret"', "adapter=secret", ": secret<"):  # the page repeats its filter
            page = page.replace(own, "")
        assert "secret" not in page
    assert exported(dev, adapter="secret")[-1]["prompt_tokens"] == "0"
    assert exported(dev)[-1]["prompt_tokens"] == "7"


def test_names_of_keys_stand_beside_ids_and_hostile_ones_stay_text(dev: Client, acme: Team) -> None:
    acme.key.name = HOSTILE[:100]
    acme.key.save()
    book(used(7, key_id=acme.key.pk), used(5, key_id="=1+1", project=HOSTILE[:150]))
    page = text_of(dev, {"group": "key"})
    assert "<script>alert" not in page
    assert "&lt;script&gt;" in page
    assert "<script>alert" not in text_of(dev, {"group": "project"})
    rows = exported(dev, group="key")
    assert rows[0]["name"].startswith("<script>")
    assert rows[1]["key"] == "'=1+1", "no spreadsheet takes it for a formula"


def test_ten_thousand_adapters_cost_as_many_queries_as_ten(dev: Client) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as found:
            text_of(dev)
        return len(found)

    many(10)
    queries()
    few = queries()
    UsageRollup.objects.all().delete()
    many(10_000)
    assert queries() == few <= 14
    assert "9,992 others" in text_of(dev)


def test_without_any_use_it_says_where_to_begin(dev: Client) -> None:
    page = text_of(dev)
    assert 'data-testid="usage-empty"' in page


@pytest.mark.parametrize(
    ("start", "end"),
    [("0001-01-01", "0001-01-30"), ("2000-01-01", "9999-12-31"), ("9999-12-31", "9999-12-31")],
)
def test_days_at_the_ends_of_time_are_refused_or_empty(dev: Client, start: str, end: str) -> None:
    refused = start != end
    days = {"start": start, "end": end}
    assert dev.get(PATH, days).status_code == (422 if refused else 200)
    answer = dev.get(f"{PATH}export", {**days, "form": "csv"})
    assert answer.status_code == (400 if refused else 200)
    assert dev.get(f"{PATH}export", {**days, "form": "json"}).status_code == answer.status_code
