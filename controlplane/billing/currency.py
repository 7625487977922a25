"""ISO 4217 minor digits of currencies, and the formatting of amounts."""

from __future__ import annotations

from decimal import Decimal
from typing import Final

NANO_DIGITS: Final = 9
_NONE: Final = (
    "BIF",
    "CLP",
    "DJF",
    "GNF",
    "ISK",
    "JPY",
    "KMF",
    "KRW",
    "PYG",
    "RWF",
    "UGX",
    "VND",
    "VUV",
    "XAF",
    "XOF",
    "XPF",
)
_THREE: Final = ("BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND")
_SYMBOLS: Final = {"USD": "$", "EUR": "€", "GBP": "£"}
_DIGITS: Final = dict.fromkeys(_NONE, 0) | dict.fromkeys(_THREE, 3)


def minor_digits(currency: str) -> int:
    """Return the currency's digits after the decimal point: 2 for most."""
    return _DIGITS.get(currency, 2)


def minor_unit(currency: str) -> int:
    """Return one minor unit, such as a cent, in nano-units."""
    return int(10 ** (NANO_DIGITS - minor_digits(currency)))


def whole_minor(nano: int, currency: str) -> int:
    """Round a positive amount down to whole minor units, in nano-units; 0 for a negative one."""
    return 0 if nano <= 0 else nano - nano % minor_unit(currency)


def decimal_text(nano: int) -> str:
    """Format nano-units with all nine decimals, as `0.000001840`."""
    return f"{Decimal(nano).scaleb(-NANO_DIGITS):.9f}"


def minor_text(nano: int, currency: str) -> str:
    """Format an amount of whole minor units without a currency sign, as `1,012.30`."""
    return f"{Decimal(nano).scaleb(-NANO_DIGITS):,.{minor_digits(currency)}f}"


def money(nano: int, currency: str) -> str:
    """Format an amount for display: `$1,234.50`, `-$0.000018`, `12.30 CHF`.

    It has the currency's minor digits, and further decimals up to the last one that is not 0.
    """
    whole, _, rest = f"{Decimal(abs(nano)).scaleb(-NANO_DIGITS):,.9f}".partition(".")
    rest = rest.rstrip("0").ljust(minor_digits(currency), "0")
    text = f"{whole}.{rest}" if rest else whole
    sign = "-" if nano < 0 else ""
    return f"{sign}{_SYMBOLS[currency]}{text}" if currency in _SYMBOLS else f"{sign}{text} {currency}"


def money_rounded(nano: int, currency: str) -> str:
    """Format an amount rounded to minor units, for headlines; below ten minor units as `money` does."""
    unit = minor_unit(currency)
    if abs(nano) < 10 * unit:
        return money(nano, currency)
    return money((2 * nano + unit) // (2 * unit) * unit, currency)


def money_computed(price: Decimal | float, currency: str) -> str:
    """Format the result of a division, in whole units, rounded to six decimals."""
    return money(round(price * 10**6) * 10 ** (NANO_DIGITS - 6), currency)
