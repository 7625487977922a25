"""A form of limits: its raw texts, and their parsed values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from controlplane.console.amounts import nano_entered, nano_shown, whole
from controlplane.console.form_errors import FormErrors
from controlplane.console.seen import Shown
from controlplane.errors import ControlPlaneError, InvalidInputError, OutOfRangeError
from controlplane.tenants.limits.models import ScopeLimits

_WHOLE: Final = (
    "requests_per_minute",
    "tokens_per_minute",
    "concurrency",
    "budget_alert_percent",
    "priority",
)
_LABELS: Final[dict[str, Any]] = {
    "requests_per_minute": gettext_lazy("Requests per minute"),
    "tokens_per_minute": gettext_lazy("Tokens per minute"),
    "concurrency": gettext_lazy("Concurrent requests"),
    "priority": gettext_lazy("The priority"),
    "budget_nano": gettext_lazy("The budget"),
    "budget_alert_percent": gettext_lazy("The percentage"),
    "weight": gettext_lazy("The weight"),
}


def limits_shown(row: ScopeLimits) -> dict[str, str]:
    """Return limits as form values: empty for no limit, a budget in currency units. A tenant has a weight."""
    shown = {name: "" if getattr(row, name) is None else str(getattr(row, name)) for name in _WHOLE}
    budget = "" if row.budget_nano is None else nano_shown(row.budget_nano)
    shown |= {"budget": budget, "budget_period": str(row.budget_period)}
    if row.api_key_id is None:
        shown["weight"] = "" if row.weight is None else _exact(row.weight)
    return shown


def limits_entered(values: Mapping[str, str]) -> dict[str, Any]:
    """Parse the form to the services' arguments. Raises InvalidInputError."""
    entered: dict[str, Any] = {"budget_period": values["budget_period"] or ScopeLimits.Period.MONTH}
    for name in _WHOLE:
        if text := values[name]:
            if (number := whole(text, digits=19)) is None:
                raise InvalidInputError(_("a whole number, or empty for no limit"), field=name)
            entered[name] = number
    if values["budget"]:
        entered["budget_nano"] = nano_entered(values["budget"], field="budget_nano")
    if text := values.get("weight", ""):
        entered["weight"] = _weight(text)
    return entered


class LimitsErrors(FormErrors):
    """Errors of a form of limits, with bounds in the form's units, unlike the REST API's."""

    def __init__(
        self, request: HttpRequest, *, currency: str, conflict_field: str, shown: Shown | None = None
    ) -> None:
        super().__init__(request, conflict_field=conflict_field, shown=shown)
        self._currency = currency

    def by_field(self, error: ControlPlaneError) -> Mapping[str, str]:
        if not isinstance(error, OutOfRangeError) or error.field not in _LABELS:
            return super().by_field(error)
        name, high = error.field, _exact(error.high)
        if name == "budget_nano":
            high = f"{nano_shown(error.high)} {self._currency}"
        words = {"label": _LABELS[name], "low": _exact(error.low), "high": high}
        return {name: _("%(label)s must be from %(low)s to %(high)s, or empty for no limit.") % words}


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not math.isfinite(weight):
        raise InvalidInputError(_("a number such as 2.5, or empty for no limit"), field="weight")
    return weight


def _exact(number: float) -> str:
    """Format a number with all its digits, so that saving an unchanged form changes nothing: 2.5, 100."""
    return f"{Decimal(repr(number)).normalize():f}"
