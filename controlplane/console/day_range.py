"""Date ranges of pages."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext as _

from controlplane.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class Preset:
    """A named range of UTC days: the last `days`, or (`month`) "this" or "last" calendar month.

    The attributes are the range's query parameters, of which one is None.
    """

    days: int | None = None
    month: str | None = None

    @property
    def title(self) -> str:
        if self.month is not None:
            return _("This month") if self.month == "this" else _("Last month")
        return _("Today") if self.days == 1 else _("%(count)d days") % {"count": self.days or 0}

    @property
    def dates(self) -> tuple[dt.date, dt.date]:
        """First and last day. The current month ends today."""
        today = timezone.now().date()
        first = today.replace(day=1)
        if self.month == "this":
            return first, today
        if self.month == "last":
            end = first - dt.timedelta(days=1)
            return end.replace(day=1), end
        return today - dt.timedelta(days=(self.days or 1) - 1), today


TODAY: Final = Preset(days=1)
WEEK: Final = Preset(days=7)
DAYS_30: Final = Preset(days=30)
THIS_MONTH: Final = Preset(month="this")
LAST_MONTH: Final = Preset(month="last")
PRESETS: Final = (WEEK, DAYS_30, Preset(days=90), THIS_MONTH, LAST_MONTH)
UP_TO_A_MONTH: Final = (TODAY, WEEK, DAYS_30, THIS_MONTH, LAST_MONTH)
"""For pages whose range has at most 31 days, or bars that would be too narrow."""


def preset_asked(
    request: HttpRequest, *, default: Preset = DAYS_30, choices: Sequence[Preset] = PRESETS
) -> Preset:
    """Return the preset that `?days=` or `?month=` names; `default` for none or an unknown one."""
    days, month = request.GET.get("days"), request.GET.get("month")
    for preset in choices:
        if (days == str(preset.days)) if month is None else (month == preset.month):
            return preset
    return default


def range_asked(
    request: HttpRequest, *, default: Preset = DAYS_30, choices: Sequence[Preset] = PRESETS
) -> tuple[dt.date, dt.date]:
    """Return first and last UTC day: by `start` and `end`, or by a preset.

    Raises InvalidInputError for an invalid day.
    """
    if not request.GET.get("start") and not request.GET.get("end"):
        return preset_asked(request, default=default, choices=choices).dates
    try:
        start, end = (dt.date.fromisoformat(request.GET.get(name, "")) for name in ("start", "end"))
    except ValueError as error:
        raise InvalidInputError(_("give both days as YYYY-MM-DD"), field="start") from error
    return start, end


def presets_shown(
    request: HttpRequest, *, default: Preset = DAYS_30, choices: Sequence[Preset] = PRESETS
) -> list[tuple[Preset, bool]]:
    """Return the presets to choose from, each with whether it is the page's range."""
    is_custom = bool(request.GET.get("start") or request.GET.get("end"))
    active = None if is_custom else preset_asked(request, default=default, choices=choices)
    return [(preset, preset == active) for preset in choices]
