"""Amounts as people enter and read them."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

from django.utils.translation import gettext as _

from controlplane.errors import InvalidInputError


def nano_entered(text: str, *, field: str, below: int = 10**9) -> int:
    """Nano-units of an amount below `below`, as 250 or 0.5. Raises InvalidInputError, naming `field`."""
    try:
        amount = Decimal(text.strip())
    except InvalidOperation:
        amount = Decimal("NaN")
    # Compared before it is multiplied: 1e999999 would be a number of a million digits.
    if not amount.is_finite() or not 0 <= amount < below or (nano := amount * 10**9) % 1:
        raise InvalidInputError(_("an amount such as 250 or 0.5, of at most nine decimals"), field=field)
    return int(nano)


def nano_shown(nano: float) -> str:
    """As it is entered, exactly: 250 or 0.5."""
    return f"{Decimal(nano) / 10**9:f}"


def hours_text(amount: int, per: int = 3600) -> str:
    """Hours of so many seconds, or of what an item is counted in, to a millionth; whole ones as such."""
    return f"{Decimal(amount) / per:,.6f}".rstrip("0").rstrip(".")
