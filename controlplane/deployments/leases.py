"""One owner per deployment: a lease in its row, taken by a conditional UPDATE and valid until it expires."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Self

from django.db.models import Q
from django.utils import timezone

from controlplane.deployments.models import Deployment

LEASE: Final = timedelta(seconds=90)
"""Longer than any single call of a provisioner, whose clients time out earlier."""
_RENEW_AFTER: Final = 15.0


class LeaseLostError(Exception):
    """Another owner took the lease; the previous owner must make no further changes."""


@dataclass(slots=True)
class Lease:
    """The exclusive right to reconcile one deployment.

    A crashed owner blocks others only until the lease expires.
    """

    deployment_id: int
    owner: str
    renewed: float

    @classmethod
    def take(cls, *, deployment_id: int, due: bool = False) -> Self | None:
        """Take the lease; None while another owner holds it, or if the deployment does not exist.

        Args:
            due: take it only if `next_at` has passed, so that duplicate messages for one run do nothing.
        """
        now, owner = timezone.now(), secrets.token_hex(16)
        free = Q(lease_owner="") | Q(lease_until=None) | Q(lease_until__lte=now)
        rows = Deployment.objects.filter(free, pk=deployment_id, removed_at=None)
        if due:
            rows = rows.filter(next_at__lte=now)
        taken = rows.update(lease_owner=owner, lease_until=now + LEASE)
        return cls(deployment_id, owner, time.monotonic()) if taken else None

    def renew(self, *, now: bool = False) -> None:
        """Extend the lease; call it before every call to the target.

        Args:
            now: renew even if the last renewal was recent. In a transaction the row's lock then keeps other
                owners out until its end.

        Raises:
            LeaseLostError: the lease expired, or another owner holds it.
        """
        # An owner that slept through its lease finds it expired, or another owner's name in the row.
        if now or time.monotonic() - self.renewed > _RENEW_AFTER:
            self.write(lease_until=timezone.now() + LEASE)
            self.renewed = time.monotonic()

    def write(self, **values: Any) -> None:
        """Update the deployment's row, which only the lease's owner may do.

        Raises:
            LeaseLostError: the lease expired, or another owner holds it; nothing is changed.
        """
        rows = Deployment.objects.filter(
            pk=self.deployment_id, lease_owner=self.owner, lease_until__gt=timezone.now()
        )
        if not rows.update(**values):
            raise LeaseLostError

    def release(self) -> None:
        """Release the lease, so that another owner can take it at once."""
        Deployment.objects.filter(pk=self.deployment_id, lease_owner=self.owner).update(
            lease_owner="", lease_until=None
        )
