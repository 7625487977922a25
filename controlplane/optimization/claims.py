"""Leases on works: one process per work, claimed by a conditional UPDATE of its row until it expires."""

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
"""How long a work stays blocked after its machine has died."""
_RENEW_AFTER: Final = 10.0
MOST_LOST: Final = 3
"""Consecutive attempts whose process vanished, after which the work fails."""
_MODELS: Final[dict[str, type[Work]]] = {
    "job": OptimizationJob,
    "comparison": ComparisonRun,
    "assessment": Assessment,
}


class ClaimLostError(Exception):
    """Another process has taken over, or the row is gone: this process must not write any more."""


def work_model(kind: str) -> type[Work]:
    """Return the model whose `Work.KIND` is `kind`."""
    return _MODELS[kind]


@dataclass(slots=True)
class Claim:
    """A lease on one work. If its process dies, other processes can claim the work once it expires."""

    kind: str
    pk: int
    owner: str
    renewed: float

    @classmethod
    def take(cls, *, kind: str, pk: int) -> Self | None:
        """Claim a work; None if another process holds it, it has ended, or it does not exist.

        A row with an expired lease lost its process; this counts one lost attempt.
        """
        now, owner = timezone.now(), secrets.token_hex(16)
        rows = work_model(kind)._default_manager.filter(
            Q(lease_owner="") | Q(lease_until__lte=now),
            pk=pk,
            status__in=(Status.QUEUED, Status.WAITING, Status.RUNNING, Status.CANCELLING),
        )
        held = {"lease_owner": owner, "lease_until": now + LEASE}
        taken = rows.exclude(lease_owner="").update(**held, lost_attempts=F("lost_attempts") + 1)
        taken = taken or rows.filter(lease_owner="").update(**held)
        return cls(kind, pk, owner, time.monotonic()) if taken else None

    def renew(self) -> None:
        """Extend the lease if the last renewal is more than ten seconds old.

        Raises:
            ClaimLostError: the lease expired and another process took it.
        """
        if time.monotonic() - self.renewed > _RENEW_AFTER:
            self.write()

    def write(self, **values: Any) -> None:
        """Update the work's row as its owner, and extend the lease.

        Raises:
            ClaimLostError: another process has taken over; nothing is changed.
        """
        rows = work_model(self.kind)._default_manager.filter(pk=self.pk, lease_owner=self.owner)
        if not rows.update(lease_until=timezone.now() + LEASE, **values):
            raise ClaimLostError
        self.renewed = time.monotonic()

    def release(self, **values: Any) -> None:
        """Write `values` and end the lease at once; do nothing if the lease was lost."""
        rows = work_model(self.kind)._default_manager.filter(pk=self.pk, lease_owner=self.owner)
        rows.update(lease_owner="", lease_until=None, **values)

    def row(self) -> Work:
        """Return the work's current row. Raises ClaimLostError if another process holds the lease."""
        row = work_model(self.kind)._default_manager.filter(pk=self.pk, lease_owner=self.owner).first()
        if row is None:
            raise ClaimLostError
        return row
