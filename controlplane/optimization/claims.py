"""One process at a work: a lease in its row, taken by a conditional UPDATE, in force until it expires."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Self

from django.db.models import F, Q
from django.utils import timezone

from controlplane.optimization.models import Assessment, ComparisonRun, OptimizationJob, Status, Work

LEASE: Final = timedelta(seconds=60)
"""How long a work stands still after the machine at it has died."""
_RENEW_AFTER: Final = 10.0
MOST_LOST: Final = 3
"""Attempts in a row whose process vanished: what kills it so often would do so again."""
_MODELS: Final[dict[str, type[Work]]] = {
    "job": OptimizationJob,
    "comparison": ComparisonRun,
    "assessment": Assessment,
}


class ClaimLostError(Exception):
    """Another process has taken over, or the row is gone: this one must change nothing any more."""


def work_model(kind: str) -> type[Work]:
    """The model of `Work.KIND`."""
    return _MODELS[kind]


@dataclass(slots=True)
class Claim:
    """The right to be at one work. Whoever dies keeps others away until it expires, no longer."""

    kind: str
    pk: int
    owner: str
    renewed: float

    @classmethod
    def take(cls, *, kind: str, pk: int) -> Self | None:
        """None while another has it, when it has ended, or when there is no such work.

        A row that says that it runs, and whose lease is over, lost its process: that is counted here.
        """
        now, owner = timezone.now(), secrets.token_hex(16)
        rows = work_model(kind)._default_manager.filter(
            Q(lease_owner="") | Q(lease_until__lte=now), pk=pk,
            status__in=(Status.QUEUED, Status.WAITING, Status.RUNNING, Status.CANCELLING),
        )  # fmt: skip
        held = {"lease_owner": owner, "lease_until": now + LEASE}
        taken = rows.exclude(lease_owner="").update(**held, lost_attempts=F("lost_attempts") + 1)
        taken = taken or rows.filter(lease_owner="").update(**held)
        return cls(kind, pk, owner, time.monotonic()) if taken else None

    def renew(self) -> None:
        """Keeps it for as long again, now and then.

        Raises:
            ClaimLostError: it expired, and another took it.
        """
        if time.monotonic() - self.renewed > _RENEW_AFTER:
            self.write()

    def write(self, **values: Any) -> None:
        """Changes the work's row, which only the owner may, and renews the lease.

        Raises:
            ClaimLostError: another has taken over; nothing is changed.
        """
        rows = work_model(self.kind)._default_manager.filter(pk=self.pk, lease_owner=self.owner)
        if not rows.update(lease_until=timezone.now() + LEASE, **values):
            raise ClaimLostError
        self.renewed = time.monotonic()

    def release(self, **values: Any) -> None:
        """Lets the next one in at once, with `values` as its last words; nothing where it is lost."""
        rows = work_model(self.kind)._default_manager.filter(pk=self.pk, lease_owner=self.owner)
        rows.update(lease_owner="", lease_until=None, **values)

    def row(self) -> Work:
        """The work as it is now. Raises ClaimLostError when another has it."""
        row = work_model(self.kind)._default_manager.filter(pk=self.pk, lease_owner=self.owner).first()
        if row is None:
            raise ClaimLostError
        return row
