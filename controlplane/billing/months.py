"""Months as billing counts them: by the first day of a UTC month."""

from __future__ import annotations

import datetime as dt


def month_of(day: dt.date) -> dt.date:
    """Return the first day of the month that `day` is in."""
    return day.replace(day=1)


def month_after(month: dt.date) -> dt.date:
    """Return the first day of the next month."""
    return (month.replace(day=1) + dt.timedelta(days=32)).replace(day=1)


def month_end(month: dt.date) -> dt.date:
    """Return the last day of the month that `month` is in."""
    return month_after(month) - dt.timedelta(days=1)
