"""Date ranges of pages."""

from __future__ import annotations

import datetime as dt
from typing import Final

from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext as _

from controlplane.errors import InvalidInputError

PRESETS: Final = (7, 30, 90)
DEFAULT_DAYS: Final = 30


def last_days(count: int) -> tuple[dt.date, dt.date]:
    """Return the last `count` UTC days, ending today."""
    today = timezone.now().date()
    return today - dt.timedelta(days=count - 1), today


def range_asked(request: HttpRequest, *, default: int = DEFAULT_DAYS) -> tuple[dt.date, dt.date]:
    """Return first and last UTC day: by `start` and `end`, by `days`, or the last `default`.

    Raises InvalidInputError for an invalid day.
    """
    if not request.GET.get("start") and not request.GET.get("end"):
        days = request.GET.get("days", "")
        return last_days(int(days) if days in map(str, PRESETS) else default)
    try:
        start, end = (dt.date.fromisoformat(request.GET.get(name, "")) for name in ("start", "end"))
    except ValueError as error:
        raise InvalidInputError(_("give both days as YYYY-MM-DD"), field="start") from error
    return start, end
