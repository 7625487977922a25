"""Tax in integers: what an invoice adds, and what a credit note returns of it."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from controlplane.billing.currency import minor_unit

_RATE_PARTS: Final = 10**6
"""A percentage has four decimals, so a rate of 100 percent is this many parts."""


@dataclass(frozen=True, slots=True)
class InvoiceTotals:
    """An invoice's amounts in nano-units: net + tax + shortfall = prepaid + due."""

    tax: int
    prepaid: int
    shortfall: int
    due: int
    carried_out: int


def tax_on(net_nano: int, rate_percent: Decimal, currency: str) -> int:
    """Return the tax on an amount above 0, rounded half up to whole minor units once; in nano-units."""
    parts = int(rate_percent * (_RATE_PARTS // 100))
    return _rounded(net_nano * parts, _RATE_PARTS, minor_unit(currency))


def invoice_totals(
    rest_nano: int, *, prepaid_nano: int, rate_percent: Decimal | None, currency: str
) -> InvoiceTotals:
    """Compute an invoice's tax, prepaid draw, shortfall and amount due from its net amount after credits.

    With a tax treatment, the part below a minor unit is carried over before tax is computed, so that it is
    taxed only once. The prepaid balance then pays whole minor units of net plus tax. Without a treatment it
    pays to the nano-unit, and the part of the rest below a minor unit is carried over.

    A negative prepaid balance is invoiced in addition, in whole minor units and without tax. Earlier invoices
    taxed the usage that it paid for, and the payment was reversed.

    Args:
        rest_nano: lines and carried in, less credits; negative after corrections, then no usage is invoiced.
        prepaid_nano: the prepaid balance.
        rate_percent: None without a tax treatment.
    """
    minor = minor_unit(currency)
    step = 1 if rate_percent is None else minor
    net = max(0, rest_nano) // step * step
    tax = 0 if rate_percent is None else tax_on(net, rate_percent, currency)
    prepaid = min(max(0, prepaid_nano), net + tax) // step * step
    due = (net + tax - prepaid) // minor * minor
    shortfall = max(0, -prepaid_nano) // minor * minor
    return InvoiceTotals(tax, prepaid, shortfall, due + shortfall, rest_nano + tax - prepaid - due)


def tax_part(tax_nano: int, *, part_nano: int, of_nano: int, currency: str) -> int:
    """Return the tax on the first `part_nano` of `of_nano`, in whole minor units; all of it at the end."""
    return tax_nano if part_nano == of_nano else _rounded(tax_nano * part_nano, of_nano, minor_unit(currency))


def usage_paid(prepaid_nano: int, rate_percent: Decimal | None) -> int:
    """Return how much usage, without tax, the prepaid balance pays for together with the tax on it."""
    if rate_percent is None or prepaid_nano <= 0:
        return prepaid_nano
    return prepaid_nano * _RATE_PARTS // (_RATE_PARTS + int(rate_percent * (_RATE_PARTS // 100)))


def _rounded(numerator: int, denominator: int, step: int) -> int:
    """numerator / denominator, rounded half up to a multiple of `step`."""
    return (2 * numerator + denominator * step) // (2 * denominator * step) * step
