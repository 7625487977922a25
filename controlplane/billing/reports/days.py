"""The range of days of a report."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from django.utils import timezone
from rest_framework import serializers


def days_asked(values: Mapping[str, Any], *, default: int) -> tuple[dt.date, dt.date]:
    """Return `start` and `end` of a validated query.

    Without `end` the range ends today; without `start` it has `default` days.

    Raises ValidationError if `end` is so early that these days would start before the calendar does.
    """
    end = values.get("end") or timezone.now().date()
    try:
        return values.get("start") or end - dt.timedelta(days=default - 1), end
    except OverflowError:
        text = f"the {default} days before end are out of range: give start, or a later end"
        raise serializers.ValidationError({"end": [text]}) from None
