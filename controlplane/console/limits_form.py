"""Limits as a form has them: texts as browsers send them, and the typed values that they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from django.utils.translation import gettext as _

from controlplane.console.amounts import nano_entered
from controlplane.errors import InvalidInputError
from controlplane.limits.models import ScopeLimits

_WHOLE: Final = (
    "requests_per_minute",
    "tokens_per_minute",
    "concurrency",
    "budget_alert_percent",
    "priority",
)
_NANO: Final = Decimal(10) ** 9


def limits_shown(row: ScopeLimits) -> dict[str, str]:
    """As the form has it: empty for no limit, a budget in the currency's units. A tenant has a weight."""
    shown = {name: "" if getattr(row, name) is None else str(getattr(row, name)) for name in _WHOLE}
    budget = "" if row.budget_nano is None else f"{Decimal(row.budget_nano) / _NANO:f}"
    shown |= {"budget": budget, "budget_period": str(row.budget_period)}
    if row.api_key_id is None:
        shown["weight"] = "" if row.weight is None else f"{row.weight:g}"
    return shown


def limits_entered(values: Mapping[str, str]) -> dict[str, Any]:
    """As the services take it. Raises InvalidInputError."""
    entered: dict[str, Any] = {"budget_period": values["budget_period"] or ScopeLimits.Period.MONTH}
    for name in _WHOLE:
        if text := values[name]:
            if not (text.isascii() and text.isdigit() and len(text) < 20):
                raise InvalidInputError(_("a whole number, or nothing for no limit"), field=name)
            entered[name] = int(text)
    if values["budget"]:
        entered["budget_nano"] = nano_entered(values["budget"], field="budget_nano")
    if text := values.get("weight", ""):
        # A share is a few decimals; nano_entered's bounds keep infinity and NaN out.
        entered["weight"] = nano_entered(text, field="weight") / 1e9
    return entered
