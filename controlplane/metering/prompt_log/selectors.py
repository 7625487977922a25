"""Reads of what a tenant keeps; opening it is a service, for it is recorded."""

from __future__ import annotations

import datetime as dt

from controlplane.errors import NotFoundError
from controlplane.metering.prompt_log.models import KeptPrompt, PromptLog
from controlplane.tenants.models import Tenant


def prompt_log_of(*, tenant: Tenant) -> PromptLog | None:
    """The tenant's choice; None while it keeps no prompts."""
    return PromptLog.objects.filter(tenant=tenant).first()


def prompt_log_get(*, tenant: Tenant) -> PromptLog:
    """Raises NotFoundError."""
    if (log := prompt_log_of(tenant=tenant)) is None:
        raise NotFoundError(f"tenant {tenant.pk} keeps no prompts: an owner or admin may turn that on")
    return log


def kept_count(*, tenant: Tenant) -> int:
    """How many requests' prompts are kept."""
    return KeptPrompt.objects.filter(tenant=tenant).count()


def is_kept(*, tenant: Tenant, request_id: str) -> bool:
    """Whether a prompt of this request is kept."""
    return KeptPrompt.objects.filter(tenant=tenant, request_id=request_id).exists()


def kept_get(*, tenant: Tenant, request_id: str) -> KeptPrompt:
    """Raises NotFoundError."""
    kept = (
        None
        if "\0" in request_id
        else KeptPrompt.objects.filter(tenant=tenant, request_id=request_id).first()
    )
    if kept is None:
        raise NotFoundError(f"no prompt is kept of request {request_id[:64]!r}")
    return kept


def kept_until(kept: KeptPrompt, log: PromptLog) -> dt.datetime:
    """When it is deleted by itself."""
    return kept.at + dt.timedelta(days=log.days)
