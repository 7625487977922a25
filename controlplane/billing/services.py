"""Creates price books and adds prices."""

from __future__ import annotations

import datetime as dt
import re

from django.db import transaction

from controlplane.billing.models import HostingPrice, Price, PriceBook, PriceBookTerm
from controlplane.billing.rates import rates_publish
from controlplane.billing.terms import everyone_switch, term_create
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.platform.audit.services import audit_record
from controlplane.platform.audit.snapshot import snapshot
from controlplane.routes.services import route_lock
from controlplane.tenants.models import Tenant


@transaction.atomic
def price_book_create(
    *,
    name: str,
    currency: str = "USD",
    is_default: bool = False,
    starts: dt.date | None = None,
    tenant: Tenant | None = None,
) -> PriceBook:
    """Creates a price book. The first one is everyone's, for all days.

    With `is_default` it is everyone's from today (UTC) on, and usage of earlier days keeps its price.

    Args:
        starts: first UTC day on which it is in force, for everyone or as the tenant's own; None: it gets
            terms by `terms.term_create`.

    Raises:
        InvalidInputError: no name, a currency that is not three capital letters, a tenant without `starts`,
            or `is_default` with `starts`.
        ConflictError: the name is taken, the currency differs from that of other books, another book is
            planned as everyone's, or is in force on some of these days.
    """
    if tenant is not None and starts is None:
        raise InvalidInputError("starts is required with tenant", field="starts")
    if is_default and starts is not None:
        raise InvalidInputError(
            "is_default applies from today: omit either is_default or starts", field="starts"
        )
    if not name.strip():
        raise InvalidInputError("name is required", field="name")
    if re.fullmatch(r"[A-Z]{3}", currency) is None:
        raise InvalidInputError("currency must be an ISO 4217 code such as USD", field="currency")
    # Serialize concurrent calls, so that the second one sees the first one's rows.
    route_lock()
    if PriceBook.objects.filter(name=name.strip()).exists():
        raise ConflictError(f"price book {name.strip()!r} already exists")
    if starts is None:
        is_default = is_default or not PriceBookTerm.objects.filter(tenant="").exists()
    book = PriceBook(name=name.strip(), currency=currency)
    book.save()
    if is_default:
        everyone_switch(book=book)
        rates_publish()
    if starts is not None:
        term_create(book=book, starts=starts, tenant=tenant)
    audit_record(tenant="", action="price_book.create", target=book, after=snapshot(book))
    return book


@transaction.atomic
def price_set(
    *,
    book: PriceBook,
    base_model: str,
    effective_from: dt.date,
    input_nano: int,
    cached_input_nano: int,
    output_nano: int,
    request_nano: int = 0,
    reasoning_nano: int | None = None,
    adapter: str = "",
    backend: str = "",
) -> Price:
    """Adds a price of calls, in force from `effective_from` (a UTC day) until a later one.

    Args:
        adapter: `<tenant>/<adapter>`, or "" for the base model and every adapter without its own price.
        backend: a kind of backend, or "" for all that have no price of their own.
        input_nano: nano-units of the book's currency per prompt token; the next two are per token as well.
        request_nano: nano-units per attempt that did not end in an error.
        reasoning_nano: nano-units per output token of the thought; None for `output_nano`.

    Raises:
        InvalidInputError: an amount is negative, the base model is missing or has a slash, or the adapter is
            not `<tenant>/<adapter>`.
        ConflictError: there is a price from that day: prices are added, never changed.
    """
    amounts = {
        "input_nano": input_nano,
        "cached_input_nano": cached_input_nano,
        "output_nano": output_nano,
        "request_nano": request_nano,
    }
    if reasoning_nano is not None:
        amounts["reasoning_nano"] = reasoning_nano
    _check_amounts(amounts)
    if not base_model:
        raise InvalidInputError("base_model is required", field="base_model")
    _check_subject(base_model, adapter)
    key = {
        "book": book,
        "base_model": base_model,
        "adapter": adapter,
        "backend": backend,
        "effective_from": effective_from,
    }
    # As in `price_book_create`; publishing the prices takes this lock anyway.
    route_lock()
    if Price.objects.filter(**key).exists():
        raise ConflictError(
            f"{adapter or base_model} already has a price from {effective_from}: choose another day"
        )
    price = Price.objects.create(**key, **amounts)
    rates_publish()
    audit_record(tenant="", action="price.set", target=price, after=snapshot(price))
    return price


@transaction.atomic
def hosting_price_set(
    *,
    book: PriceBook,
    kind: str,
    effective_from: dt.date,
    nano: int,
    base_model: str = "",
    adapter: str = "",
    backend: str = "",
) -> HostingPrice:
    """Adds a price of hosting time, in force from `effective_from` (a UTC day) until a later one.

    Args:
        kind: one of HostingPrice.Kind.
        nano: nano-units of the book's currency per hour; for storage per GB (1e9 bytes) and hour.
        base_model, adapter, backend: what the price is for; "" for all without a price of their own.

    Raises:
        InvalidInputError: the amount is negative, the kind unknown, or the adapter not `<tenant>/<adapter>`.
        ConflictError: there is a price from that day: prices are added, never changed.
    """
    if kind not in HostingPrice.Kind.values:
        raise InvalidInputError(f"kind must be one of {', '.join(HostingPrice.Kind.values)}", field="kind")
    _check_amounts({"nano": nano})
    _check_subject(base_model, adapter)
    key = {
        "book": book,
        "kind": kind,
        "base_model": base_model,
        "adapter": adapter,
        "backend": backend,
        "effective_from": effective_from,
    }
    route_lock()
    if HostingPrice.objects.filter(**key).exists():
        raise ConflictError(f"{kind} already has a price from {effective_from}: choose another day")
    price = HostingPrice.objects.create(**key, nano=nano)
    audit_record(tenant="", action="hosting_price.set", target=price, after=snapshot(price))
    return price


def _check_amounts(amounts: dict[str, int]) -> None:
    for field, amount in amounts.items():
        if not 0 <= amount < 1 << 62:
            raise InvalidInputError(f"{field} must be an integer of nano-units, 0 or more", field=field)


def _check_subject(base_model: str, adapter: str) -> None:
    # Rates are published under paths of these names.
    if "/" in base_model:
        raise InvalidInputError("base_model must be a name without a slash", field="base_model")
    if adapter and not all((*adapter.split("/", 1), adapter.count("/") == 1)):
        raise InvalidInputError("adapter must have the form <tenant>/<adapter>", field="adapter")
