"""Tax in integers: what an invoice adds, and what part of it a credit note takes back."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from controlplane.billing.currency import minor_unit

_RATE_PARTS: Final = 10**6
"""A rate in percent has four decimals: so many parts are the whole."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What an invoice asks for, in nano-units: net + tax + shortfall = prepaid + due."""

    tax: int
    prepaid: int
    shortfall: int
    due: int
    carried_out: int


def tax_on(net_nano: int, rate_percent: Decimal, currency: str) -> int:
    """Tax on an amount above 0: exact, then rounded to a minor unit once, halves up."""
    parts = int(rate_percent * (_RATE_PARTS // 100))
    return _rounded(net_nano * parts, _RATE_PARTS, minor_unit(currency))


def asked(rest_nano: int, *, prepaid_nano: int, rate_percent: Decimal | None, currency: str) -> Asked:
    """How `rest_nano`, what is left of lines once credits have paid, is asked for.

    With a tax treatment what is less than a minor unit is carried on before tax is computed, or else it would
    be taxed twice, and what is prepaid pays whole minor units of the sum with tax. Without one it pays to the
    nano-unit, and the rest of what is due is carried on.

    What is prepaid and below 0 is asked for besides, in whole minor units and without tax: it was money paid
    for what earlier invoices have taxed already, and was not there.

    Args:
        rest_nano: below 0 after corrections; then nothing is asked for.
        rate_percent: None where there is no tax treatment.
    """
    minor = minor_unit(currency)
    step = 1 if rate_percent is None else minor
    net = max(0, rest_nano) // step * step
    tax = 0 if rate_percent is None else tax_on(net, rate_percent, currency)
    prepaid = min(max(0, prepaid_nano), net + tax) // step * step
    due = (net + tax - prepaid) // minor * minor
    shortfall = max(0, -prepaid_nano) // minor * minor
    return Asked(tax, prepaid, shortfall, due + shortfall, rest_nano + tax - prepaid - due)


def tax_part(tax_nano: int, *, part_nano: int, of_nano: int, currency: str) -> int:
    """The tax on the first `part_nano` of `of_nano`: in proportion, in whole minor units, all at the end."""
    return tax_nano if part_nano == of_nano else _rounded(tax_nano * part_nano, of_nano, minor_unit(currency))


def usage_paid(prepaid_nano: int, rate_percent: Decimal | None) -> int:
    """How much usage, without tax, what is prepaid pays for together with the tax on it."""
    if rate_percent is None or prepaid_nano <= 0:
        return prepaid_nano
    return prepaid_nano * _RATE_PARTS // (_RATE_PARTS + int(rate_percent * (_RATE_PARTS // 100)))


def _rounded(numerator: int, denominator: int, step: int) -> int:
    """numerator / denominator to a multiple of `step`, halves up."""
    return (2 * numerator + denominator * step) // (2 * denominator * step) * step
