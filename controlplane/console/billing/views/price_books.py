"""The operator's billing pages: price books and their terms, and all tenants' invoices."""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from controlplane.billing.in_force import meter_prices, read_day, terms_on
from controlplane.billing.invoices.selectors import invoice_get, invoice_list
from controlplane.billing.invoices.services import invoice_finalize
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
from controlplane.billing.services import hosting_price_set, price_book_create, price_set
from controlplane.billing.terms import term_create, term_end, term_remove
from controlplane.console.billing.price_timeline import lanes, readable
from controlplane.console.entered import entered
from controlplane.console.pages import field_errors, staff_page
from controlplane.errors import ControlPlaneError, InvalidInputError, NotFoundError
from controlplane.tenants.selectors import tenant_get

SHOWN: Final = 200
_BOOK: Final = ("name", "currency", "tenant", "starts")
_TOKENS: Final = ("input_nano", "cached_input_nano", "output_nano", "request_nano")


@require_http_methods(["GET", "POST"])
@staff_page
def index(request: HttpRequest) -> HttpResponse:
    """Show each book's terms and a day's prices, all books, and the form that creates one."""
    values = {name: request.POST.get(name, "").strip() for name in _BOOK}
    errors: dict[str, str] = {}
    if request.method == "POST":
        try:
            book = price_book_create(
                name=entered(request, "name", most=63),
                currency=values["currency"] or "USD",
                starts=_day(request, "starts") if values["starts"] else None,
                tenant=tenant_get(slug=values["tenant"]) if values["tenant"] else None,
            )
        except NotFoundError as error:
            errors = {"tenant": str(error)}
        except ControlPlaneError as error:
            errors = field_errors(error, conflict_field="form")
        else:
            return redirect("console:staff-price-book", name=book.name)
    context = {"books": price_book_list(), "values": values, "errors": errors, **_in_force(request)}
    return render(request, "staff/price_books.html", context, status=422 if errors else 200)


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


@require_GET
@staff_page
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


@require_POST
@staff_page
def add(request: HttpRequest, name: str) -> HttpResponse:
    """Add a usage price, a hosting price or a term; end a term, or cancel a planned price or term."""
    book = price_book_get(name=name)
    try:
        match request.POST.get("what"):
            case "price":
                _add_price(request, book)
            case "hosting":
                hosting_price_set(
                    book=book,
                    kind=request.POST.get("kind", ""),
                    nano=_nano(request, "nano"),
                    **_subject(request),
                    effective_from=_day(request, "effective_from"),
                )
            case "term":
                slug = request.POST.get("tenant", "").strip()
                ends = _day(request, "ends") if request.POST.get("ends") else None
                tenant = tenant_get(slug=slug) if slug else None
                term_create(book=book, tenant=tenant, starts=_day(request, "starts"), ends=ends)
            case "end":
                term = _term(request, book)
                term_end(term=term, ends=_day(request, "ends") if request.POST.get("ends") else None)
            case "remove":
                term_remove(term=_term(request, book))
            case _:
                raise InvalidInputError(_("say what to add: price, hosting, term or end"), field="what")
    except ControlPlaneError as error:
        messages.error(request, str(error))
    else:
        messages.success(request, _("Saved."))
    return redirect("console:staff-price-book", name=name)


def _term(request: HttpRequest, book: PriceBook) -> PriceBookTerm:
    return term_get(book=book, term_id=_whole(request.POST.get("term", "")) or 0)


@require_GET
@staff_page
def invoices(request: HttpRequest) -> HttpResponse:
    """List all tenants' invoices, newest first."""
    return render(request, "staff/invoices.html", {"invoices": invoice_list(tenant=None)[:SHOWN]})


@require_POST
@staff_page
def finalize(request: HttpRequest, invoice: int) -> HttpResponse:
    """Finalize a draft, if its amount due is the one that the form showed."""
    try:
        if (due_nano := _whole(request.POST.get("due_nano", ""))) is None:
            raise InvalidInputError(_("confirm the amount due on the invoice's page"), field="due_nano")
        made = invoice_finalize(
            invoice=invoice_get(invoice_id=invoice),
            due_nano=due_nano,
            allow_unpriced="allow_unpriced" in request.POST,
        )
    except NotFoundError:
        raise
    except ControlPlaneError as error:
        messages.error(request, str(error))
    else:
        messages.success(request, _("Invoice %(title)s was finalized.") % {"title": made.title})
    return redirect("console:staff-invoice", invoice=invoice)


def _add_price(request: HttpRequest, book: PriceBook) -> None:
    values: dict[str, Any] = {**_subject(request), **{name: _nano(request, name) for name in _TOKENS}}
    price_set(book=book, **values, effective_from=_day(request, "effective_from"))


def _subject(request: HttpRequest) -> dict[str, str]:
    most = {"base_model": 63, "adapter": 130, "backend": 63}
    return {name: entered(request, name, most=length) for name, length in most.items()}


def _nano(request: HttpRequest, name: str) -> int:
    if (value := _whole(request.POST.get(name, "").strip() or "0")) is None:
        raise InvalidInputError(_("%(name)s must be an integer of nano-units") % {"name": name}, field=name)
    return value


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def _day(request: HttpRequest, name: str) -> dt.date:
    try:
        return dt.date.fromisoformat(request.POST.get(name, ""))
    except ValueError:
        raise InvalidInputError(_("give %(name)s as YYYY-MM-DD") % {"name": name}, field=name) from None
