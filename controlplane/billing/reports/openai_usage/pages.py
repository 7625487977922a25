"""Responses in the shape of OpenAI's usage API (`page` of `bucket`s of results), from sums only."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import Q, QuerySet, Sum

from controlplane.billing import items
from controlplane.billing.price_list import PriceList, call_unit
from controlplane.billing.quantities import adapter_name, call_items, call_price
from controlplane.billing.reports.openai_usage.query import UsageQuery
from controlplane.metering.models import UsageRollup
from controlplane.metering.selectors import SummedUse, hour_list, rollup_list, use_summed
from controlplane.tenants.models import Tenant

_HOUR: Final = 3600
_DAY: Final = 86_400
_EPOCH: Final = dt.date(1970, 1, 1)
_SUMS: Final = ("prompt_tokens", "cached_tokens", "completion_tokens", "requests")
_PRICED: Final = ("adapter", "base_model", "backend")
"""Columns that a call's price depends on, besides its day and tenant."""

_TITLES: Final = {
    items.INPUT: "input tokens",
    items.CACHED_INPUT: "cached input tokens",
    items.OUTPUT: "output tokens",
    items.REASONING: "reasoning tokens",
    items.REQUEST: "requests",
}
Group = tuple[str, ...]
Found = dict[int, dict[Group, Any]]
"""Results by bucket start in Unix seconds, then by the values of `group_by`."""


def completions_page(*, tenant: Tenant, project: str | None, query: UsageQuery) -> dict[str, Any]:
    """Return tokens and requests by bucket. `project`: the only one that may be read; None for all."""
    found: Found = defaultdict(lambda: defaultdict(lambda: [0] * len(_SUMS)))
    for row in _summed(tenant, project, query):
        model = adapter_name(row["adapter"]) or row["base_model"]
        if model not in query.filters.get("models", {model}):
            continue
        values = {"project_id": row["project"], "api_key_id": row["key_id"], "model": model}
        sums = found[_start(row, query)][tuple(values[name] for name in query.group_by)]
        for index, name in enumerate(_SUMS):
            sums[index] += row[f"sum_{name}"]
    return _page(query, found, _completions_result)


def costs_page(*, tenant: Tenant, project: str | None, query: UsageQuery) -> dict[str, Any]:
    """Return costs by day, at that day's prices. Unpriced usage has a quantity and no amount."""
    prices = PriceList.load()
    currency = prices.currency().lower()
    found: Found = defaultdict(lambda: defaultdict(_Cost))
    names = query.filters.get("line_items")
    named = {"project_id": "project", "api_key_id": "key_id"}
    columns = [*_PRICED, *(column for name, column in named.items() if name in query.group_by)]
    for rollup in use_summed(_filtered(rollup_list, tenant, project, query), by=columns):
        for item in line_items(rollup, prices):
            if names is not None and item.name not in names:
                continue
            values = {"project_id": rollup.project, "api_key_id": rollup.key_id, "line_item": item.name}
            bucket = (rollup.day - _EPOCH).days * _DAY
            found[bucket][tuple(values[name] for name in query.group_by)].add(item.quantity, item.nano)
    return _page(query, found, lambda group, cost: _cost_result(group, cost, currency))


@dataclass(frozen=True, slots=True)
class LineItem:
    """One item of one model's calls.

    Attributes:
        name: `<model>, <item>`.
        quantity: tokens, or requests.
        nano: nano-units of the currency; None where the model has no price.
    """

    name: str
    quantity: int
    nano: int | None


def line_items(rollup: UsageRollup | SummedUse, prices: PriceList) -> Iterator[LineItem]:
    """Yield the items of a day's sums that have usage."""
    adapter = adapter_name(rollup.adapter)
    price = call_price(rollup, prices)
    own = price is not None and price.reasoning_nano is not None
    for item, quantity in call_items(rollup, own_reasoning=own):
        # Requests are an item only if they have a price above 0.
        if not quantity or (item == items.REQUEST and not (price and price.request_nano)):
            continue
        unit = None if price is None else call_unit(price, item)
        nano = None if unit is None else quantity * unit
        yield LineItem(f"{adapter or rollup.base_model}, {_TITLES[item]}", quantity, nano)


@dataclass(slots=True)
class _Cost:
    quantity: int = 0
    nano: int = 0
    unpriced: bool = False

    def add(self, quantity: int, nano: int | None) -> None:
        self.quantity += quantity
        self.nano += nano or 0
        self.unpriced |= nano is None


def _filtered(rows: Any, tenant: Tenant, project: str | None, query: UsageQuery) -> QuerySet[Any]:
    start, end = query.days
    found = rows(tenant=tenant.pk, start=start, end=end)
    if project is not None:
        found = found.filter(project=project)
    for name, column in (("project_ids", "project"), ("api_key_ids", "key_id")):
        if name in query.filters:
            found = found.filter(**{f"{column}__in": list(query.filters[name])})
    return found if query.count else found.none()  # type: ignore[no-any-return]


def _summed(tenant: Tenant, project: str | None, query: UsageQuery) -> Iterable[dict[str, Any]]:
    """Sums by bucket and by every grouped or filtered column, added up by the database."""
    hourly = query.width == _HOUR
    rows = _filtered(hour_list if hourly else rollup_list, tenant, project, query)
    if hourly:
        # Rows are selected by whole days: drop hours outside the range from the first and last day.
        first, last = query.first, query.first + query.count * query.width - _HOUR
        rows = rows.exclude(_before(first)).exclude(_after(last))
    columns = ["day", "project", "key_id", "adapter", "base_model", *(["hour"] if hourly else [])]
    found: Iterable[dict[str, Any]] = (
        rows.values(*columns).annotate(**{f"sum_{name}": Sum(name) for name in _SUMS}).order_by()
    )
    return found


def _before(moment: int) -> Q:
    return Q(day=_EPOCH + dt.timedelta(moment // _DAY), hour__lt=moment % _DAY // _HOUR)


def _after(moment: int) -> Q:
    return Q(day=_EPOCH + dt.timedelta(moment // _DAY), hour__gt=moment % _DAY // _HOUR)


def _start(row: dict[str, Any], query: UsageQuery) -> int:
    return int((row["day"] - _EPOCH).days * _DAY + (row["hour"] * _HOUR if query.width == _HOUR else 0))


def _page(query: UsageQuery, found: Found, result: Any) -> dict[str, Any]:
    return {
        "object": "page",
        "data": [
            {
                "object": "bucket",
                "start_time": start,
                "end_time": start + query.width,
                "results": [
                    result(dict(zip(query.group_by, group, strict=True)), sums)
                    for group, sums in sorted(found.get(start, {}).items())
                ],
            }
            for start in query.buckets()
        ],
        "has_more": query.next_page is not None,
        "next_page": query.next_page,
    }


def _completions_result(group: dict[str, str], sums: list[int]) -> dict[str, Any]:
    prompt, cached, completion, requests = sums
    return {
        "object": "organization.usage.completions.result",
        "input_tokens": prompt,
        "input_cached_tokens": cached,
        "input_uncached_tokens": prompt - cached,
        "output_tokens": completion,
        "input_audio_tokens": 0,
        "output_audio_tokens": 0,
        "num_model_requests": requests,
        **{name: group.get(name) for name in ("project_id", "user_id", "api_key_id", "model")},
        "batch": None,
        "service_tier": None,
    }


def _cost_result(group: dict[str, str], cost: _Cost, currency: str) -> dict[str, Any]:
    by_item = "line_item" in group
    return {
        "object": "organization.costs.result",
        # A sum that leaves out unpriced usage would look like the full cost.
        "amount": None if cost.unpriced else {"value": cost.nano / 1e9, "currency": currency},
        "quantity": cost.quantity if by_item else None,
        "quantity_unit": _unit(group["line_item"]) if by_item else None,
        **{name: group.get(name) for name in ("line_item", "project_id", "api_key_id", "user_id")},
        "organization_id": None,
    }


def _unit(line_item: str) -> str:
    return "requests" if line_item.endswith(", requests") else "tokens"
