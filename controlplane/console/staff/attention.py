"""Items that need the operator's attention, each with the page on which to act."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Final

from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from controlplane.billing.currency import money_rounded
from controlplane.billing.invoices.selectors import invoice_list_to_finalize
from controlplane.billing.ledger.selectors import invoices_unpaid
from controlplane.billing.selectors import budget_notice_list_reached
from controlplane.console.home.to_do import ToDo
from controlplane.deployments.models import Deployment
from controlplane.deployments.selectors import copy_list_silent, deployment_list_troubled
from controlplane.monitoring.selectors import alarm_list_firing
from controlplane.optimization.selectors import job_list_failed
from controlplane.tenants.selectors import tenant_list_suspended

SHOWN: Final = 5
"""Most items of one kind; the list page that the last item opens has all."""
RECENT: Final = dt.timedelta(days=7)
"""A job that failed within this time is listed."""


def attention(*, currency: str) -> list[ToDo]:
    """Return the items, those that stop requests first. Eight queries, however many rows there are."""
    now = timezone.now()
    return [
        *_deployments(),
        *_copies(now),
        *_alarms(),
        *_budgets(now),
        *_suspended(),
        *_jobs(now),
        *_invoices(currency, now.date()),
    ]


def _deployments() -> Iterator[ToDo]:
    for row in deployment_list_troubled()[:SHOWN]:
        failed = row.status == Deployment.Status.FAILED
        text = (
            _("Deployment %(name)s failed: %(reason)s") if failed else _("%(name)s is degraded: %(reason)s")
        )
        parts = {"name": row.name, "reason": row.reason[:200] or _("open it for its steps.")}
        url = reverse("console:staff-deployment", args=(row.name,))
        yield ToDo("danger" if failed else "warn", text % parts, url, "deployment")


def _copies(now: dt.datetime) -> Iterator[ToDo]:
    for copy in copy_list_silent()[:SHOWN]:
        assert copy.silent_since is not None
        minutes = int((now - copy.silent_since).total_seconds() // 60)
        text = _("Copy %(copy)s of %(base)s has not responded for %(minutes)d minutes.")
        parts = {"copy": copy.pk, "base": copy.base_model.name, "minutes": minutes}
        yield ToDo("danger", text % parts, reverse("console:staff-fleet-copy", args=(copy.pk,)), "copy")


def _alarms() -> Iterator[ToDo]:
    for alarm in alarm_list_firing()[:SHOWN]:
        text = _("Alarm %(name)s: %(reason)s") % {"name": alarm.name, "reason": alarm.state_reason[:200]}
        yield ToDo("danger", text, reverse("console:staff-alarm", args=(alarm.pk,)), "alarm")


def _budgets(now: dt.datetime) -> Iterator[ToDo]:
    for notice in budget_notice_list_reached(now=now)[:SHOWN]:
        text = _("%(tenant)s has spent its budget for %(period)s: its requests are rejected.")
        parts = {"tenant": notice.tenant, "period": notice.period}
        yield ToDo("danger", text % parts, reverse("console:staff-tenant", args=(notice.tenant,)), "budget")


def _suspended() -> Iterator[ToDo]:
    for tenant in tenant_list_suspended()[:SHOWN]:
        text = _("Tenant %(tenant)s is suspended: %(reason)s")
        parts = {"tenant": tenant.pk, "reason": tenant.suspended_reason[:200]}
        yield ToDo("warn", text % parts, reverse("console:staff-tenant", args=(tenant.pk,)), "suspended")


def _jobs(now: dt.datetime) -> Iterator[ToDo]:
    for job in job_list_failed(since=now - RECENT)[:SHOWN]:
        text = _("Optimization job %(name)s failed: %(reason)s")
        parts = {"name": job.variant_name, "reason": job.reason[:200]}
        yield ToDo("warn", text % parts, reverse("console:staff-optimization", args=(job.pk,)), "job")


def _invoices(currency: str, today: dt.date) -> Iterator[ToDo]:
    url = reverse("console:staff-invoices")
    if unpaid := invoices_unpaid():
        text = ngettext(
            "%(count)d invoice is unpaid: %(sum)s.", "%(count)d invoices are unpaid: %(sum)s.", len(unpaid)
        )
        parts = {"count": len(unpaid), "sum": money_rounded(sum(unpaid.values()), currency)}
        yield ToDo("warn", text % parts, f"{url}?status=unpaid", "unpaid")
    if drafts := invoice_list_to_finalize(today=today).count():
        text = ngettext(
            "%(count)d draft invoice is ready to finalize.",
            "%(count)d draft invoices are ready to finalize.",
            drafts,
        )
        yield ToDo("warn", text % {"count": drafts}, f"{url}?status=draft", "drafts")
