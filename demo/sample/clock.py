"""Runs the control plane's services as "Sample data", also at an earlier time."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final
from unittest import mock

from django.utils import timezone

from controlplane.billing.months import month_of
from controlplane.platform.audit.origin import Actor, Origin, acting

_ACTOR: Final = Actor("system", "demo.sample", "Sample data")


def acting_as_sample() -> AbstractContextManager[None]:
    """Name "Sample data" as the actor in the audit log."""
    return acting(Origin(lambda: _ACTOR))


def history_start(now: dt.datetime) -> dt.datetime:
    """Return the start of the month before last, UTC: two whole months and what has passed of this one."""
    last_month = month_of(month_of(now.date()) - dt.timedelta(days=1))
    return dt.datetime.combine(month_of(last_month - dt.timedelta(days=1)), dt.time(), dt.UTC)


@contextmanager
def as_of(moment: dt.datetime) -> Iterator[None]:
    """Act as sample data, with `moment` as this process's current time."""
    with mock.patch.object(timezone, "now", return_value=moment), acting_as_sample():
        yield
