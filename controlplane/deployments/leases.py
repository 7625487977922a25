"""One owner a deployment: a lease in its row, taken by a conditional UPDATE, in force until it expires."""

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
"""Longer than any one call of a provisioner takes: its clients give up sooner."""
_RENEW_AFTER: Final = 15.0


class LeaseLostError(Exception):
    """Another owner has taken over: this one must change nothing any more."""


@dataclass(slots=True)
class Lease:
    """The right to drive one deployment. Whoever dies keeps others away until it expires, no longer."""

    deployment_id: int
    owner: str
    renewed: float

    @classmethod
    def take(cls, *, deployment_id: int, due: bool = False) -> Self | None:
        """None while another holds it, or when there is no such deployment.

        Args:
            due: only when its time has come: of several messages for one look the others are late.
        """
        now, owner = timezone.now(), secrets.token_hex(16)
        free = Q(lease_owner="") | Q(lease_until=None) | Q(lease_until__lte=now)
        rows = Deployment.objects.filter(free, pk=deployment_id, removed_at=None)
        if due:
            rows = rows.filter(next_at__lte=now)
        taken = rows.update(lease_owner=owner, lease_until=now + LEASE)
        return cls(deployment_id, owner, time.monotonic()) if taken else None

    def renew(self, *, now: bool = False) -> None:
        """Keeps it for as long again; to be called before every call to the target.

        Args:
            now: however short ago it was renewed. In a transaction nobody takes over before its end.

        Raises:
            LeaseLostError: it expired, and another took it.
        """
        # The clock is the database row's; an owner that slept through its lease finds another's name there.
        if now or time.monotonic() - self.renewed > _RENEW_AFTER:
            self.write(lease_until=timezone.now() + LEASE)
            self.renewed = time.monotonic()

    def write(self, **values: Any) -> None:
        """Changes the deployment's row, which only the owner may.

        Raises:
            LeaseLostError: another has taken over; nothing is changed.
        """
        rows = Deployment.objects.filter(
            pk=self.deployment_id, lease_owner=self.owner, lease_until__gt=timezone.now()
        )
        if not rows.update(**values):
            raise LeaseLostError

    def release(self) -> None:
        """Lets the next one in at once."""
        Deployment.objects.filter(pk=self.deployment_id, lease_owner=self.owner).update(
            lease_owner="", lease_until=None
        )
