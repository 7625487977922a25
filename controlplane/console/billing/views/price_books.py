"""The operator's billing pages: price books and their terms, and all tenants' invoices."""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _

from controlplane.billing.in_force import meter_prices, read_day, terms_on
from controlplane.billing.invoices.selectors import invoice_get, invoice_list, invoice_list_by_id
from controlplane.billing.invoices.services import invoice_finalize
from controlplane.billing.ledger.selectors import invoices_unpaid
from controlplane.billing.models import PriceBook, PriceBookTerm
from controlplane.billing.price_list import PriceList
from controlplane.billing.selectors import (
    hosting_price_list,
    price_book_get,
    price_book_list,
    price_list,
    term_get,
    term_list,
)
from controlplane.billing.serializers import (
    HostingPriceSerializer,
    PriceBookInput,
    PriceSerializer,
    TermChange,
    TermInput,
)
from controlplane.billing.services import hosting_price_set, price_book_create, price_set
from controlplane.billing.terms import term_create, term_end, term_remove
from controlplane.console.amounts import whole
from controlplane.console.billing.price_timeline import lanes, readable
from controlplane.console.day_range import LAST_MONTH
from controlplane.console.form_errors import FormErrors, RefusalMessage, parsed, posted
from controlplane.console.pages import staff_page
from controlplane.console.paging import CHOICES
from controlplane.errors import ControlPlaneError, InvalidInputError, NotFoundError
from controlplane.tenants.selectors import tenant_get, tenant_list

SHOWN: Final = 200


@staff_page("GET", "POST")
def index(request: HttpRequest) -> HttpResponse:
    """Show each book's terms and a day's prices, all books, and the form that creates one."""
    values, errors = posted(request, PriceBookInput), FormErrors(request)
    if request.method == "POST":
        with errors:
            book = price_book_create(**_with_tenant(parsed(PriceBookInput, values)))
            return redirect("console:staff-price-book", name=book.name)
    context = {"books": price_book_list(), "values": values, **_in_force(request)}
    return errors.render("staff/price_books.html", context)


def _with_tenant(sent: dict[str, Any]) -> dict[str, Any]:
    """Return the values with the tenant that they name, or None for everyone. Raises InvalidInputError."""
    try:
        return sent | {"tenant": tenant_get(slug=sent["tenant"]) if sent.get("tenant") else None}
    except NotFoundError as error:
        raise InvalidInputError(str(error), field="tenant") from error


def _in_force(request: HttpRequest) -> dict[str, Any]:
    """Return the prices for the requested day and tenant; for invalid input today's, with the error."""
    asked = {name: request.GET.get(name, "").strip() for name in ("day", "tenant")}
    try:
        day, tenant = read_day(asked["day"]), tenant_get(slug=asked["tenant"]).pk if asked["tenant"] else ""
    except ControlPlaneError as error:
        day, tenant, wrong = read_day(""), "", str(error)
    else:
        wrong = ""
    prices = PriceList.load()
    costs = meter_prices(prices, day=day, tenant=tenant)
    holdings = terms_on(day, tenant=tenant)
    return {
        "day": day,
        "asked": asked,
        "wrong": wrong,
        "currency": prices.currency(),
        "first": dt.date.min,
        "lanes": lanes(holdings, day=day)[:SHOWN],
        "costs": readable(costs[:SHOWN]),
        "shown": SHOWN,
        "more": max(0, len(costs) - SHOWN),
    }


@staff_page("GET")
def detail(request: HttpRequest, name: str) -> HttpResponse:
    """Show one book: its prices and terms."""
    book = price_book_get(name=name)
    context = {
        "book": book,
        "prices": price_list(book=book),
        "hosting": hosting_price_list(book=book),
        "terms": term_list(book=book),
        "first": dt.date.min,
        "today": dt.datetime.now(dt.UTC).date(),
    }
    return render(request, "staff/price_book.html", context)


@staff_page("POST")
def add(request: HttpRequest, name: str) -> HttpResponse:
    """Add a usage price, a hosting price or a term; end a term, or cancel a planned price or term."""
    book = price_book_get(name=name)
    with RefusalMessage(request):
        match request.POST.get("what"):
            case "price":
                price_set(book=book, **parsed(PriceSerializer, posted(request, PriceSerializer)))
            case "hosting":
                sent = parsed(HostingPriceSerializer, posted(request, HostingPriceSerializer))
                hosting_price_set(book=book, **sent)
            case "term":
                term_create(book=book, **_with_tenant(parsed(TermInput, posted(request, TermInput))))
            case "end":
                ends = parsed(TermChange, {"ends": request.POST.get("ends") or None})["ends"]
                term_end(term=_term(request, book), ends=ends)
            case "remove":
                term_remove(term=_term(request, book))
            case _:
                raise InvalidInputError(_("say what to add: price, hosting, term or end"), field="what")
        messages.success(request, _("Saved."))
    return redirect("console:staff-price-book", name=name)


def _term(request: HttpRequest, book: PriceBook) -> PriceBookTerm:
    return term_get(book=book, term_id=whole(request.POST.get("term", "")) or 0)


@staff_page("GET")
def invoices(request: HttpRequest) -> HttpResponse:
    """List all tenants' invoices, or (`?status=`) the drafts or the unpaid ones, newest first."""
    unpaid, status = invoices_unpaid(), request.GET.get("status", "")
    if status == "unpaid":
        found = invoice_list_by_id(ids=unpaid)
    else:
        found = invoice_list(tenant=None, status="draft" if status == "draft" else "")
    context = {
        "invoices": [(row, unpaid.get(row.pk, 0)) for row in found[:SHOWN]],
        "status": status,
        "tenants": tenant_list()[:CHOICES],
        "last_month": LAST_MONTH.dates[0],
    }
    return render(request, "staff/invoices.html", context)


@staff_page("POST")
def finalize(request: HttpRequest, invoice: int) -> HttpResponse:
    """Finalize a draft, if its amount due is the one that the form showed."""
    found = invoice_get(invoice_id=invoice)
    with RefusalMessage(request):
        if (due_nano := whole(request.POST.get("due_nano", ""))) is None:
            raise InvalidInputError(_("confirm the amount due on the invoice's page"), field="due_nano")
        made = invoice_finalize(
            invoice=found, due_nano=due_nano, allow_unpriced="allow_unpriced" in request.POST
        )
        messages.success(request, _("Invoice %(title)s was finalized.") % {"title": made.title})
    return redirect("console:staff-invoice", invoice=invoice)
