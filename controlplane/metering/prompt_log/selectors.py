"""Reads a tenant's stored prompts. Opening one is a service, since it is recorded."""

from __future__ import annotations

import datetime as dt

from contracts.usage_event import call_id
from controlplane.metering.prompt_log.models import KeptPrompt, PromptLog
from controlplane.platform.row_lookup import row_get
from controlplane.tenants.models import Tenant


def prompt_log_of(*, tenant: Tenant) -> PromptLog | None:
    """Return the tenant's setting; None while it stores no prompts."""
    return PromptLog.objects.filter(tenant=tenant).first()


def prompt_log_get(*, tenant: Tenant) -> PromptLog:
    """Return the tenant's setting. Raises NotFoundError while it stores no prompts."""
    why = f"tenant {tenant.pk} does not store prompts: an owner or admin can enable the prompt log"
    return row_get(PromptLog.objects.filter(tenant=tenant), why)


def kept_count(*, tenant: Tenant) -> int:
    """Return the number of requests with a stored prompt."""
    return KeptPrompt.objects.filter(tenant=tenant).count()


def is_kept(*, tenant: Tenant, request_id: str) -> bool:
    """Return True if the prompt of this request, or of the call that it belongs to, is stored."""
    return KeptPrompt.objects.filter(tenant=tenant, request_id=call_id(request_id)).exists()


def kept_get(*, tenant: Tenant, request_id: str) -> KeptPrompt:
    """Return the stored prompt of a request, or of the call that it belongs to. Raises NotFoundError."""
    rows = KeptPrompt.objects.filter(tenant=tenant, request_id=call_id(request_id))
    rows = rows.none() if "\0" in request_id else rows
    return row_get(rows, f"there is no stored prompt for request {request_id[:64]!r}")


def kept_until(kept: KeptPrompt, log: PromptLog) -> dt.datetime:
    """Return when the prompt is deleted automatically."""
    return kept.at + dt.timedelta(days=log.days)
