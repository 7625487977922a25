"""Staff: savings of shared machines, and the price of a million tokens by two formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET
from rest_framework import serializers

from controlplane.billing.price_list import PriceList
from controlplane.billing.reports.api import BlendedQuery, EstimateQuery, SavingsQuery
from controlplane.billing.reports.models import Plan
from controlplane.billing.reports.savings import (
    TIERS,
    Saving,
    blended_prices,
    saving_estimate,
    saving_measured,
)
from controlplane.console.amounts import hours_text
from controlplane.console.pages import staff_page
from controlplane.errors import InvalidInputError

_REGION: Final = "us-east-1"


@require_GET
@staff_page
def index(request: HttpRequest) -> HttpResponse:
    """Show measured savings of a range of days, and estimated ones, each on request."""
    measured = _answer(request, "measured", SavingsQuery, _measured)
    estimate = _answer(request, "estimate", EstimateQuery, _estimate)
    context = {
        "measured": measured,
        "estimate": estimate,
        "tiers": TIERS,
        "region": _REGION,
        "values": request.GET.dict(),
    }
    status = 422 if measured["errors"] or estimate["errors"] else 200
    return render(request, "staff/savings.html", context, status=status)


@require_GET
@staff_page
def blended(request: HttpRequest) -> HttpResponse:
    """Show a million tokens' price, from a machine's price and throughput, and from token prices."""
    found = _answer(request, "blended", BlendedQuery, _blended)
    context = {"found": found, "values": request.GET.dict(), "region": _REGION, "plans": Plan.choices}
    return render(request, "staff/blended_price.html", context, status=422 if found["errors"] else 200)


def _answer(
    request: HttpRequest, form: str, kind: type[serializers.Serializer[Any]], answer: Callable[..., Any]
) -> dict[str, Any]:
    """Return `answer`'s result for the form, or its errors by field; neither if another form was sent.

    The fields and error texts are those of the REST API.
    """
    if request.GET.get("form") != form:
        return {"result": None, "errors": {}}
    given = {name: value.strip() for name, value in request.GET.dict().items() if value.strip()}
    query = kind(data=given)
    if not query.is_valid():
        return {"result": None, "errors": {name: str(texts[0]) for name, texts in query.errors.items()}}
    try:
        return {"result": answer(**query.validated_data), "errors": {}}
    except InvalidInputError as error:
        return {"result": None, "errors": {error.field or "form": str(error)}}


def _measured(**values: Any) -> dict[str, Any]:
    return _saving_context(saving_measured(**values))


def _estimate(**values: Any) -> dict[str, Any]:
    values.setdefault("day", timezone.now().date())
    return _saving_context(saving_estimate(**values))


def _saving_context(saving: Saving) -> dict[str, Any]:
    return {"saving": saving, "adapter_hours": hours_text(saving.adapter_seconds)}


def _blended(**values: Any) -> dict[str, Any]:
    found = blended_prices(day=timezone.now().date(), **values)
    return {
        "price": found.price,
        "by_throughput": found.by_throughput,
        "throughput": f"{found.throughput:.3f}",
        "by_list_price": found.by_list_price,
        "discount": f"{found.discount * 100:.2f}" if found.discount else "",
        "book_currency": PriceList.load().currency(),
    }
