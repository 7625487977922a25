"""Conversion of amounts between stored units and what people read and type."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

from django.utils.translation import gettext as _

from controlplane.errors import InvalidInputError


def nano_entered(text: str, *, field: str, below: int = 10**9) -> int:
    """Parse an amount below `below`, such as 250 or 0.5, to nano-units. Raises InvalidInputError."""
    try:
        amount = Decimal(text.strip())
    except InvalidOperation:
        amount = Decimal("NaN")
    # Compare before the multiplication: 1e999999 would become a number of a million digits.
    if not amount.is_finite() or not 0 <= amount < below or (nano := amount * 10**9) % 1:
        raise InvalidInputError(_("an amount such as 250 or 0.5, of at most nine decimals"), field=field)
    return int(nano)


def whole(text: str, *, digits: int = 18) -> int | None:
    """Parse a whole number of at most `digits`; None for any other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= digits else None


def nano_shown(nano: float) -> str:
    """Format nano-units exactly as they would be entered: 250 or 0.5."""
    return f"{Decimal(nano) / 10**9:f}"


def hours_text(amount: int, per: int = 3600) -> str:
    """Format seconds (or an item's other unit, by `per`) as hours, to a millionth."""
    return f"{Decimal(amount) / per:,.6f}".rstrip("0").rstrip(".")
