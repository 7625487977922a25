"""Tokens of thoughts: part of the output, with a price of their own where a book says so."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from typing import Any

import pytest
from django.db import IntegrityError
from django.test import Client

from contracts.errors import ContractError
from contracts.limits import RateRoute
from controlplane.billing import items
from controlplane.billing.in_force import meter_prices
from controlplane.billing.invoices.services import invoice_draft
from controlplane.billing.ledger.posting import books_drift, usage_post
from controlplane.billing.models import InvoiceLine, Price, PriceBook
from controlplane.billing.price_list import PriceList
from controlplane.billing.rates import _current_rates
from controlplane.billing.reports.openai_usage.pages import line_items
from controlplane.billing.request_costs import request_nano
from controlplane.billing.selectors import spent_nano
from controlplane.billing.services import price_book_create, price_set
from controlplane.billing.usage_report import usage_report
from controlplane.errors import InvalidInputError
from controlplane.metering.event_rows import StreamEntry, event_row
from controlplane.metering.models import UsageEventRow, UsageRollup
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import user_create
from tests.controlplane.billing.parties import parties_state
from tests.controlplane.billing.programs import ARRIVED, event, ingest
from tests.controlplane.known import known

pytestmark = pytest.mark.django_db
DAY = dt.date(2024, 1, 31)
MONTH = DAY.replace(day=1)
TOKENS = {"prompt_tokens": 100, "cached_tokens": 40, "completion_tokens": 30, "reasoning_tokens": 20}
INPUT = 60 * 11 + 40 * 5
FOLDED, OWN = INPUT + 30 * 13, INPUT + 10 * 13 + 20 * 17


def test_the_database_refuses_a_negative_price() -> None:
    book = price_book_create(name="standard")
    with pytest.raises(IntegrityError, match="reasoning_nano"):
        Price.objects.create(
            book=book,
            effective_from=MONTH,
            input_nano=1,
            cached_input_nano=1,
            output_nano=1,
            reasoning_nano=-1,
        )


@pytest.fixture
def used(tenant: Tenant, graftwork: Any, settings: Any) -> Tenant:
    settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, usage_keep_days=36_500)
    known("tiny", tenants=())
    parties_state()
    ingest(event(DAY, 1, **TOKENS))
    return tenant


def price(reasoning_nano: int | None, **changes: Any) -> PriceBook:
    book = PriceBook.objects.first() or price_book_create(name="standard")
    values: dict[str, Any] = {
        "effective_from": MONTH,
        "input_nano": 11,
        "cached_input_nano": 5,
        "output_nano": 13,
    } | changes
    price_set(book=book, base_model="tiny", reasoning_nano=reasoning_nano, **values)
    return book


@pytest.mark.parametrize(("reasoning_nano", "nano"), [(None, FOLDED), (17, OWN), (0, OWN - 20 * 17)])
def test_every_sum_has_the_price(used: Tenant, reasoning_nano: int | None, nano: int) -> None:
    price(reasoning_nano)
    prices = PriceList.load()
    assert request_nano(UsageEventRow.objects.get(), prices) == nano
    (row,) = usage_report(tenant=used, start=DAY, end=DAY).rows
    assert (row.completion_tokens, row.reasoning_tokens, row.nano) == (30, 20, nano)
    assert spent_nano(tenant="acme", key_id=None, start=DAY, end=DAY) == nano
    assert sum(item.nano or 0 for item in line_items(UsageRollup.objects.get(), prices)) == nano
    usage_post(tenant="acme", start=DAY, end=DAY)
    assert books_drift(tenant="acme", start=DAY, end=DAY) == {}
    lines = InvoiceLine.objects.filter(invoice=invoice_draft(tenant="acme", month=MONTH))
    assert sum(line.amount_nano or 0 for line in lines) == nano


def quantities() -> dict[str, int]:
    invoice = invoice_draft(tenant="acme", month=MONTH)
    return {line.item: line.quantity for line in InvoiceLine.objects.filter(invoice=invoice)}


def test_only_a_price_of_their_own_makes_a_line_of_their_own(used: Tenant) -> None:
    price(None)
    assert quantities() == {"input": 60, "cached_input": 40, "output": 30}
    # A new price of the day replaces what was booked.
    price(17, effective_from=DAY)
    assert quantities() == {"input": 60, "cached_input": 40, "output": 10, "reasoning": 20}
    names = [item.name for item in line_items(UsageRollup.objects.get(), PriceList.load())]
    assert "tiny, reasoning tokens" in names
    assert items.title("reasoning") == "Reasoning tokens"


def test_without_any_price_they_are_unpriced_output(used: Tenant) -> None:
    assert quantities() == {"input": 60, "cached_input": 40, "output": 30}


def test_gateways_reserve_by_the_highest_price(used: Tenant) -> None:
    price(None)
    assert _current_rates(DAY) == {"rates/tiny": RateRoute(11, 5, 13)}
    price(1, backend="vllm")
    assert _current_rates(DAY) == {"rates/tiny": RateRoute(11, 5, 13, reasoning_nano=13)}, (
        "the worker asks more"
    )
    price(99, backend="worker")
    assert _current_rates(DAY) == {"rates/tiny": RateRoute(11, 5, 13, reasoning_nano=99)}


def test_the_prices_in_force_list_it_where_it_is_one(used: Tenant) -> None:
    price(None)
    assert items.REASONING not in {row.item for row in meter_prices(PriceList.load(), day=DAY)}
    price(17, effective_from=DAY)
    (row,) = (row for row in meter_prices(PriceList.load(), day=DAY) if row.item == items.REASONING)
    assert (row.nano, row.base_model) == (17, "tiny")


def test_amounts_are_checked(used: Tenant) -> None:
    with pytest.raises(InvalidInputError):
        price(-1)


def test_staff_sets_it_by_rest_and_on_the_page(used: Tenant, client: Client) -> None:
    book = price_book_create(name="standard")
    client.force_login(user_create(email="staff@example.com", password="a-long-password-1", is_staff=True))
    sent = {"base_model": "tiny", "input_nano": 1, "cached_input_nano": 1, "output_nano": 2}
    url = f"/api/v1/price-books/{book.name}/prices"
    answer = client.post(
        url, json.dumps(sent | {"effective_from": "2027-01-01", "reasoning_nano": 3}), "application/json"
    )
    assert (answer.status_code, answer.json()["reasoning_nano"]) == (201, 3)
    answer = client.post(url, json.dumps(sent | {"effective_from": "2027-01-02"}), "application/json")
    assert (answer.status_code, answer.json()["reasoning_nano"]) == (201, None)
    page = f"/staff/price-books/{book.name}"
    form = {
        "what": "price",
        **sent,
        "effective_from": "2027-01-03",
        "reasoning_nano": "5",
        "request_nano": "0",
    }
    client.post(f"{page}/add", form)
    client.post(f"{page}/add", form | {"effective_from": "2027-01-04", "reasoning_nano": ""})
    shown = client.get(f"{page}/").content.decode()
    assert shown.count(">as output</td>") == 2
    found = Price.objects.order_by("effective_from").values_list("reasoning_nano", flat=True)
    assert list(found) == [3, None, 5, None]


def test_more_reasoning_than_completion_tokens_is_refused(used: Tenant) -> None:
    text = event(DAY, 2, completion_tokens=3, reasoning_tokens=4).to_json().encode()
    with pytest.raises(ContractError, match="reasoning_tokens must not exceed completion_tokens"):
        event_row(StreamEntry(f"{ARRIVED}-0", text))
