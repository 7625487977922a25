"""Rate limits of invitation e-mails, since members can enter any address."""

from __future__ import annotations

from typing import Final

from controlplane.errors import ConflictError
from controlplane.platform.http.throttling import take, take_daily
from controlplane.tenants.models import Tenant

PER_TENANT: Final = 20
"""Most links a minute for one tenant's invitations."""
PER_EMAIL: Final = 2
"""Most links a minute to one e-mail address, from all tenants."""
PER_EMAIL_DAILY: Final = 20


def invitation_rate_check(*, tenant: Tenant, email: str) -> None:
    """Count a link that is about to be sent. Raises ConflictError if a limit is reached."""
    to, wait = f"invitations:mail:{email}", "try again in a minute"
    if take(f"invitations:tenant:{tenant.pk}", per_minute=PER_TENANT):
        raise ConflictError(f"{PER_TENANT} invitations can be sent per minute: {wait}")
    if take(to, per_minute=PER_EMAIL):
        raise ConflictError(f"{email} can be sent {PER_EMAIL} invitations per minute: {wait}")
    if take_daily(to, per_day=PER_EMAIL_DAILY):
        raise ConflictError(f"{email} was sent {PER_EMAIL_DAILY} invitations today: try again tomorrow")
