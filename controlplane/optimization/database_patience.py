"""Tolerates short database outages, so that they do not end a job of hours."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, TypeVar

from django.db import InterfaceError, OperationalError, connection

T = TypeVar("T")
logger = logging.getLogger(__name__)
PATIENCE_S: Final = 45.0
"""Less than a lease's duration: until then no other process can have taken over the work."""


class DatabasePatience:
    """Skips calls during a database outage, up to a time limit."""

    def __init__(self, patience: float = PATIENCE_S) -> None:
        self._patience, self._away_since = patience, 0.0

    def __call__(self, write: Callable[[T], None], told: T) -> None:
        """Raises OperationalError or InterfaceError of a database that stays away, or what `write` does."""
        try:
            write(told)
        except (OperationalError, InterfaceError) as error:
            now = time.monotonic()
            self._away_since = self._away_since or now
            if now - self._away_since > self._patience:
                raise
            logger.warning("the database is unavailable, the work continues: %s", error)
            if not connection.in_atomic_block:
                # A broken connection stays broken; the next call makes a new one.
                connection.close()
        else:
            self._away_since = 0.0
