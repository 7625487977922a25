"""Terms of price books: those of one tenant, and those of everyone, never overlap."""

from __future__ import annotations

import datetime as dt

from django.db import transaction
from django.db.models import Q, QuerySet

from controlplane.billing.models import JournalEntry, PriceBook, PriceBookTerm
from controlplane.billing.price_list import EVERYONE
from controlplane.billing.rates import rates_publish
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.platform.audit.services import audit_record
from controlplane.platform.audit.snapshot import locked_snapshot, snapshot
from controlplane.routes.services import route_lock
from controlplane.tenants.models import Tenant


@transaction.atomic
def term_create(
    *, book: PriceBook, starts: dt.date, ends: dt.date | None = None, tenant: Tenant | None = None
) -> PriceBookTerm:
    """Puts a book in force from `starts` to `ends`, UTC days, both included; None for no end.

    Days that are invoiced already are priced again, and the difference goes on the next invoice.

    Args:
        tenant: whose own book it is, which takes precedence over everyone's; None for everyone.

    Raises:
        InvalidInputError: it ends before it starts.
        ConflictError: another book is in force on some of these days, or the currencies differ.
    """
    if ends is not None and ends < starts:
        raise InvalidInputError("ends cannot be before starts; null means no end", field="ends")
    _lock()
    currency_check(book=book)
    whose = tenant.pk if tenant else EVERYONE
    if other := _overlapping(whose, starts, ends).first():
        until = f"from {starts} to {ends}" if ends else f"from {starts} on"
        raise ConflictError(
            f"price book {book.name!r} for {whose or 'everyone'} {until} would overlap price book"
            f" {other.book.name!r}, in force {_days(other)}: end that one, or choose other days"
        )
    term = PriceBookTerm.objects.create(book=book, tenant=whose, starts=starts, ends=ends)
    if not whose:
        _mark_default(book)
    rates_publish()
    audit_record(tenant=whose, action="price_book.term", target=term, after=snapshot(term))
    return term


@transaction.atomic
def term_end(*, term: PriceBookTerm, ends: dt.date | None) -> PriceBookTerm:
    """Sets the last UTC day of a term, included; None for no end.

    Raises:
        InvalidInputError: it would end before it starts.
        ConflictError: another book is in force on some of the added days.
    """
    if ends is not None and ends < term.starts:
        raise InvalidInputError(f"ends cannot be before starts ({term.starts})", field="ends")
    _lock()
    before = locked_snapshot(term)
    if other := _overlapping(term.tenant, term.starts, ends).exclude(pk=term.pk).first():
        raise ConflictError(
            f"price book {term.book.name!r} would overlap price book {other.book.name!r}, in force"
            f" {_days(other)}: choose an earlier end"
        )
    term.ends = ends
    term.save(update_fields=["ends"])
    rates_publish()
    audit_record(
        tenant=term.tenant, action="price_book.term", target=term, before=before, after=snapshot(term)
    )
    return term


@transaction.atomic
def term_remove(*, term: PriceBookTerm) -> None:
    """Deletes a planned term, whose prices no usage has yet.

    Raises ConflictError: it has begun.
    """
    _lock()
    if term.starts <= dt.datetime.now(dt.UTC).date():
        raise ConflictError(
            f"price book {term.book.name!r} has been in force {_days(term)}: end the term instead of "
            "removing it"
        )
    audit_record(tenant=term.tenant, action="price_book.term", target=term, before=locked_snapshot(term))
    term.delete()
    if not term.tenant:
        last = PriceBookTerm.objects.filter(tenant=EVERYONE).select_related("book").order_by("starts").last()
        _mark_default(last.book if last else None)
    rates_publish()


def currency_check(*, book: PriceBook) -> None:
    """Check that the book has the currency of the other books with terms and of the journal.

    The caller holds the lock of terms. Raises ConflictError.
    """
    booked = JournalEntry.objects.order_by("-pk").first()
    if booked is not None and booked.currency != book.currency:
        raise ConflictError(
            f"price book {book.name!r} is in {book.currency}, but the journal is in {booked.currency}"
        )
    other = PriceBookTerm.objects.exclude(book__currency=book.currency).select_related("book").first()
    if other is not None:
        raise ConflictError(
            f"price book {book.name!r} is in {book.currency}, but {other.book.name!r}, which is in force, is "
            f"in {other.book.currency}: price books in force must share one currency"
        )


@transaction.atomic
def everyone_switch(*, book: PriceBook) -> PriceBookTerm:
    """Makes `book` everyone's, from today (UTC) on; the first one for all days. The current term is ended.

    Raises:
        ConflictError: its currency differs, or a book is planned as everyone's from a later day on.
    """
    _lock()
    currency_check(book=book)
    terms = PriceBookTerm.objects.filter(tenant=EVERYONE).select_related("book")
    today = dt.datetime.now(dt.UTC).date()
    if planned := terms.filter(starts__gt=today).order_by("starts").first():
        raise ConflictError(
            f"price book {planned.book.name!r} is planned for all tenants {_days(planned)}: make"
            f" {book.name!r} without is_default, and give it a term that ends before"
        )
    starts = today if terms.exists() else dt.date.min
    for term in terms.filter(Q(ends=None) | Q(ends__gte=today)):
        before = locked_snapshot(term)
        if term.starts == today:
            audit_record(tenant="", action="price_book.term", target=term, before=before)
            term.delete()
            continue
        term.ends = today - dt.timedelta(days=1)
        term.save(update_fields=["ends"])
        audit_record(tenant="", action="price_book.term", target=term, before=before, after=snapshot(term))
    term = PriceBookTerm.objects.create(book=book, tenant=EVERYONE, starts=starts)
    _mark_default(book)
    audit_record(tenant="", action="price_book.term", target=term, after=snapshot(term))
    return term


def _mark_default(book: PriceBook | None) -> None:
    PriceBook.objects.filter(is_default=True).update(is_default=False)
    if book is not None:
        book.is_default = True
        book.save(update_fields=["is_default"])


def _overlapping(whose: str, starts: dt.date, ends: dt.date | None) -> QuerySet[PriceBookTerm]:
    terms = PriceBookTerm.objects.filter(Q(ends=None) | Q(ends__gte=starts), tenant=whose)
    return (terms if ends is None else terms.filter(starts__lte=ends)).select_related("book")


def _days(term: PriceBookTerm) -> str:
    return f"from {term.starts} to {term.ends}" if term.ends else f"from {term.starts} on"


def _lock() -> None:
    # Concurrent writers would not see each other's terms; publishing the prices takes this lock anyway.
    route_lock()
