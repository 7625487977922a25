"""Changes of price books."""

from __future__ import annotations

import datetime as dt
import re

from django.db import transaction

from controlplane.billing.models import Price, PriceBook
from controlplane.errors import ConflictError, InvalidInputError


@transaction.atomic
def price_book_create(*, name: str, currency: str = "USD", is_default: bool = False) -> PriceBook:
    """Makes a price book; the first one, or one made so, is the default.

    Raises:
        InvalidInputError: no name, or a currency that is not three capital letters.
        ConflictError: the name is taken.
    """
    if not name.strip():
        raise InvalidInputError("a price book needs a name", field="name")
    if re.fullmatch(r"[A-Z]{3}", currency) is None:
        raise InvalidInputError("currency is an ISO 4217 code such as USD", field="currency")
    if PriceBook.objects.filter(name=name.strip()).exists():
        raise ConflictError(f"there is a price book {name.strip()!r} already")
    is_default = is_default or not PriceBook.objects.filter(is_default=True).exists()
    if is_default:
        PriceBook.objects.filter(is_default=True).update(is_default=False)
    return PriceBook.objects.create(name=name.strip(), currency=currency, is_default=is_default)


@transaction.atomic
def price_set(
    *,
    book: PriceBook,
    base_model: str,
    effective_from: dt.date,
    input_nano: int,
    cached_input_nano: int,
    output_nano: int,
    adapter: str = "",
) -> Price:
    """Adds a price, in force from `effective_from` (a UTC day) until a later one.

    Args:
        adapter: `<tenant>/<adapter>`, or "" for the base model and every adapter without its own price.
        input_nano: nano-units of the book's currency per prompt token; so for the other two.

    Raises:
        InvalidInputError: an amount is negative or the adapter is not `<tenant>/<adapter>`.
        ConflictError: there is a price from that day: prices are added, never changed.
    """
    amounts = {"input_nano": input_nano, "cached_input_nano": cached_input_nano, "output_nano": output_nano}
    for field, amount in amounts.items():
        if not 0 <= amount < 1 << 62:
            raise InvalidInputError(f"{field} must be a whole number of nano-units, 0 or more", field=field)
    if adapter and adapter.count("/") != 1:
        raise InvalidInputError("adapter must read <tenant>/<adapter>", field="adapter")
    key = {"book": book, "base_model": base_model, "adapter": adapter, "effective_from": effective_from}
    if Price.objects.filter(**key).exists():
        raise ConflictError(
            f"{adapter or base_model} has a price from {effective_from} on already: set one from another day"
        )
    return Price.objects.create(**key, **amounts)
