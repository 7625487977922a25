"""Usage and costs as OpenAI's own client reads them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from django.core.handlers.wsgi import WSGIHandler
from django.test import Client
from openai import DefaultHttpxClient, OpenAI

from controlplane.billing.reports.openai_usage import pages
from controlplane.billing.reports.openai_usage.pages import line_items
from controlplane.billing.services import price_book_create, price_set
from controlplane.metering.models import UsageHour, UsageRollup
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import api_key_create

pytestmark = pytest.mark.django_db(transaction=True)
DAY = 86_400
FEB_29 = int(dt.datetime(2024, 2, 29, tzinfo=dt.UTC).timestamp())
ADAPTER = "t_acme.a_pirate.v2.0123456789ab"
COMPLETIONS, COSTS = "/api/v1/organization/usage/completions", "/api/v1/organization/costs"


def _used(moment: int, *, tokens: int = 10, **changes: Any) -> None:
    """Sums of an hour and of its day, as an ingester adds them."""
    at = dt.datetime.fromtimestamp(moment, dt.UTC)
    row = {
        "day": at.date(),
        "tenant": "acme",
        "project": "default",
        "key_id": "k1",
        "adapter": "",
        "alias": "",
        "base_model": "tiny-base",
        "backend": "worker",
        "status": "ok",
        "requests": 1,
        "prompt_tokens": tokens,
        "cached_tokens": 4,
        "completion_tokens": 3,
    } | changes
    UsageHour.objects.create(**row, hour=at.hour)
    sums = {
        name: row.pop(name) for name in ("requests", "prompt_tokens", "cached_tokens", "completion_tokens")
    }
    day, made = UsageRollup.objects.get_or_create(**row, defaults=sums)
    if not made:
        for name, amount in sums.items():
            setattr(day, name, getattr(day, name) + amount)
        day.save()


@pytest.fixture
def usage(tenant: Tenant) -> None:
    _used(FEB_29 - 1, tokens=7)
    _used(FEB_29, tokens=10, key_id="k2")
    _used(FEB_29 + 13 * 3600, tokens=20, adapter=ADAPTER, project="chat")
    _used(FEB_29 + DAY - 1, tokens=30)
    _used(FEB_29 + DAY, tokens=40, status="error")
    _used(FEB_29, tokens=500, tenant="globex")


@pytest.fixture
def key(tenant: Tenant) -> str:
    return api_key_create(tenant=tenant, name="k", scopes=["manage"])[1]


@pytest.fixture
def openai(key: str) -> Iterator[OpenAI]:
    """OpenAI's own client, over the real handler."""
    transport = httpx2.WSGITransport(app=WSGIHandler())
    with DefaultHttpxClient(transport=transport) as http:
        yield OpenAI(base_url="http://localhost/api/v1", api_key="none", admin_api_key=key, http_client=http)


def _get(key: str, path: str, **query: Any) -> Any:
    return Client().get(path, query, headers={"Authorization": f"Bearer {key}"})


def _buckets(answer: Any) -> list[tuple[int, list[int]]]:
    assert answer.status_code == 200, answer.content
    return [
        (bucket["start_time"] - FEB_29, [result["input_tokens"] for result in bucket["results"]])
        for bucket in answer.json()["data"]
    ]


@pytest.mark.usefixtures("usage")
def test_days_are_of_utc_leap_day_and_months_end_too(key: str) -> None:
    answer = _get(key, COMPLETIONS, start_time=FEB_29 - DAY, end_time=FEB_29 + 2 * DAY)
    assert _buckets(answer) == [(-DAY, [7]), (0, [60]), (DAY, [40])]
    assert (answer.json()["has_more"], answer.json()["next_page"]) == (False, None)
    (result,) = answer.json()["data"][1]["results"]
    assert result == {
        "object": "organization.usage.completions.result",
        "input_tokens": 60,
        "input_cached_tokens": 12,
        "input_uncached_tokens": 48,
        "output_tokens": 9,
        "input_audio_tokens": 0,
        "output_audio_tokens": 0,
        "num_model_requests": 3,
        "project_id": None,
        "user_id": None,
        "api_key_id": None,
        "model": None,
        "batch": None,
        "service_tier": None,
    }


@pytest.mark.usefixtures("usage")
def test_hours_of_part_of_a_day(key: str) -> None:
    """A range that begins and ends within a bucket has all of that bucket."""
    query = {"start_time": FEB_29 + 3 * 3600 + 7, "end_time": FEB_29 + 13 * 3600 + 1, "bucket_width": "1h"}
    found = _buckets(_get(key, COMPLETIONS, **query))
    assert [start // 3600 for start, _ in found] == list(range(3, 14))
    assert [sums for _, sums in found if sums] == [[20]]


@pytest.mark.usefixtures("usage")
def test_pages_join_to_the_whole(key: str) -> None:
    query: dict[str, Any] = {
        "start_time": FEB_29,
        "end_time": FEB_29 + 2 * DAY,
        "bucket_width": "1h",
        "limit": 7,
    }
    whole, pages = [], 0
    while True:
        answer = _get(key, COMPLETIONS, **query)
        whole += _buckets(answer)
        pages += 1
        if not answer.json()["has_more"]:
            break
        query["page"] = answer.json()["next_page"]
    assert pages == 7
    assert [start for start, _ in whole] == [hour * 3600 for hour in range(48)]
    assert sum(tokens for _, sums in whole for tokens in sums) == 100


@pytest.mark.usefixtures("usage")
def test_groups_and_filters(key: str) -> None:
    query = {"start_time": FEB_29, "end_time": FEB_29 + DAY}

    def grouped(**more: Any) -> dict[tuple[str | None, ...], int]:
        (bucket,) = _get(key, COMPLETIONS, **query, **more).json()["data"]
        names = ("project_id", "api_key_id", "model")
        return {tuple(row[name] for name in names): row["input_tokens"] for row in bucket["results"]}

    assert grouped(group_by="model") == {(None, None, "pirate"): 20, (None, None, "tiny-base"): 40}
    assert grouped(**{"group_by[]": ["project_id", "api_key_id"]}) == {
        ("chat", "k1", None): 20,
        ("default", "k1", None): 30,
        ("default", "k2", None): 10,
    }
    assert grouped(api_key_ids="k2,k3") == {(None, None, None): 10}
    assert grouped(models=["pirate"], project_ids=["chat", "x"]) == {(None, None, None): 20}
    assert grouped(models="none") == {}


@pytest.mark.usefixtures("usage")
def test_costs_are_at_the_days_prices_and_say_what_has_none(key: str) -> None:
    book = price_book_create(name="standard")
    price_set(
        book=book,
        base_model="tiny-base",
        effective_from=dt.date(2024, 2, 29),
        input_nano=1000,
        cached_input_nano=100,
        output_nano=4000,
    )
    query = {"start_time": FEB_29 - DAY, "end_time": FEB_29 + DAY}
    before, day = _get(key, COSTS, **query).json()["data"]
    assert before["results"][0]["amount"] is None
    (total,) = day["results"]
    nano = (60 - 12) * 1000 + 12 * 100 + 9 * 4000
    assert total["amount"] == {"value": nano / 1e9, "currency": "usd"}
    items = _get(key, COSTS, **query, group_by="line_item").json()["data"][1]["results"]
    assert {(item["line_item"], item["quantity"]) for item in items} == {
        ("pirate, input tokens", 16),
        ("pirate, cached input tokens", 4),
        ("pirate, output tokens", 3),
        ("tiny-base, input tokens", 32),
        ("tiny-base, cached input tokens", 8),
        ("tiny-base, output tokens", 6),
    }
    assert round(sum(item["amount"]["value"] for item in items) * 1e9) == nano
    (one,) = _get(key, COSTS, **query, line_items="pirate, output tokens").json()["data"][1]["results"]
    assert one["amount"]["value"] == 12_000 / 1e9


@pytest.mark.usefixtures("usage")
def test_costs_are_added_up_by_the_database(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = dict.fromkeys(("project", "alias", "adapter"), "") | {
        "base_model": "many-keys",
        "backend": "w",
    }
    sums = {"requests": 1, "prompt_tokens": 2, "cached_tokens": 0, "completion_tokens": 0}
    for number in range(20):
        UsageRollup.objects.create(
            day=dt.date(2024, 2, 29), tenant="acme", key_id=f"k{number}", status="ok", **names, **sums
        )
    priced: list[Any] = []
    whole = line_items

    def recorded_line_items(row: Any, prices: Any) -> Any:
        priced.append(row)
        return whole(row, prices)

    monkeypatch.setattr(pages, "line_items", recorded_line_items)
    start = int(dt.datetime(2024, 2, 29, tzinfo=dt.UTC).timestamp())
    asked: dict[str, Any] = {"start_time": start, "end_time": start + DAY, "group_by": "line_item"}
    answer = Client().get(COSTS, asked, headers={"Authorization": f"Bearer {key}"}).json()
    found = {row["line_item"]: row["quantity"] for row in answer["data"][0]["results"]}
    assert found["many-keys, input tokens"] == 40
    assert len([row for row in priced if row.base_model == "many-keys"]) == 1


@pytest.mark.usefixtures("usage")
def test_openais_own_client_reads_both(openai: OpenAI) -> None:
    usage = openai.admin.organization.usage
    page = usage.completions(start_time=FEB_29, end_time=FEB_29 + DAY, group_by=["model", "project_id"])
    (bucket,) = page.data
    found = {(row.model, row.project_id): row.input_tokens for row in bucket.results}  # type: ignore[union-attr]
    assert found == {("pirate", "chat"): 20, ("tiny-base", "default"): 40}
    for row in bucket.results:
        assert set(row.to_dict()) <= set(type(row).model_fields), "a field that OpenAI's result has not"
    costs = usage.costs(start_time=FEB_29, end_time=FEB_29 + DAY, group_by=["line_item"])
    assert {row.object for row in costs.data[0].results} == {"organization.costs.result"}


@pytest.mark.usefixtures("usage")
def test_a_key_for_usage_reads_its_own_project_alone(tenant: Tenant) -> None:
    _, reader = api_key_create(tenant=tenant, name="dashboard", scopes=["usage"])
    query = {"start_time": FEB_29, "end_time": FEB_29 + DAY}
    assert _buckets(_get(reader, COMPLETIONS, **query)) == [(0, [40])]
    assert _buckets(_get(reader, COMPLETIONS, **query, project_ids="chat")) == [(0, [])]


@pytest.mark.parametrize(
    ("path", "query", "reason"),
    [
        (COMPLETIONS, {"start_time": None}, "start_time is required"),
        (COMPLETIONS, {"start_time": "x"}, "start_time must be"),
        (COMPLETIONS, {"start_time": "9" * 12}, "start_time must be"),
        (COMPLETIONS, {"bucket_width": "1m"}, "summed hourly: use 1d or 1h"),
        (COSTS, {"bucket_width": "1h"}, "prices are daily: use 1d"),
        (COMPLETIONS, {"limit": "32"}, "from 1 to 31"),
        (COMPLETIONS, {"limit": "169", "bucket_width": "1h"}, "from 1 to 168"),
        (COMPLETIONS, {"limit": "0"}, "from 1"),
        (COMPLETIONS, {"group_by": "user_id"}, "by key and project, not by user"),
        (COMPLETIONS, {"group_by": "colour"}, "groups are"),
        (COMPLETIONS, {"batch": "true"}, "batch jobs are not supported"),
        (COSTS, {"models": "x"}, "is none of"),
        (COMPLETIONS, {"page": "page_1"}, "next_page of a response"),
        (COMPLETIONS, {"page": "abc"}, "next_page of a response"),
        (COMPLETIONS, {"models": "m" * 201}, "at most 100 values"),
    ],
)
def test_what_cannot_be_answered_is_refused_with_the_reason(
    key: str, path: str, query: dict[str, str | None], reason: str
) -> None:
    given = {name: value for name, value in ({"start_time": FEB_29} | query).items() if value is not None}
    answer = _get(key, path, **given)
    assert answer.status_code == 400
    assert reason in answer.json()["errors"][0]["detail"]
