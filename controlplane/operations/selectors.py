"""Reads of tenants' deletions, and the ownership of rows by tenants."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any, Final

from django.apps import apps
from django.db.models import ForeignKey, Model, QuerySet
from django.utils import timezone

from controlplane.errors import NotFoundError
from controlplane.operations.models import TenantDeletion
from controlplane.tenants.models import Tenant, User

NOBODYS: Final = {
    "adapters.ArtifactRemoval": "content-addressed files",
    "billing.HostingPrice": "the operator's prices",
    "billing.Price": "the operator's prices",
    "billing.PriceBook": "the operator's prices",
    "catalog.BaseModel": "the operator's models",
    "catalog.CheckpointFile": "the operator's models",
    "catalog.Variant": "the operator's models",
    "deployments.AdapterRule": "requests to the operator's servers; deleted with the version's route",
    "deployments.Copy": "the operator's servers",
    "deployments.Deployment": "the operator's servers",
    "deployments.DeploymentRollout": "changes of the operator's servers",
    "deployments.DeploymentStep": "changes of the operator's servers",
    "deployments.Placement": "derived from the published table, and deleted with its entries",
    "deployments.RemovedCopy": "the operator's servers; deleted after a day",
    "deployments.ScaleUp": "the operator's servers",
    "deployments.Scaling": "the operator's servers",
    "deployments.Target": "locations of the operator's servers",
    "idempotency.KeptAnswer": "sealed under keys that only callers have; deleted within a day",
    "metering.HostingObservation": "time of the last observation of the operator's servers",
    "monitoring.MetricExport": "progress of exports from the operator's servers",
    "operations.TenantDeletion": "record of the deletion itself",
    "optimization.Artifact": "the operator's optimized checkpoints",
    "optimization.Assessment": "the operator's requests to SageMaker",
    "optimization.Attempt": "the operator's optimization jobs",
    "optimization.ComparisonRun": "the operator's comparisons",
    "optimization.OptimizationJob": "the operator's optimization jobs",
    "optimization.PromptSet": "the operator's prompts",
    "optimization.WorkEvent": "the operator's optimization jobs",
    "reports.InstancePrice": "prices of the operator's machines",
    "routes.RouteCounter": "the published table, derived from other tables",
    "routes.RouteDelta": "the published table, derived from other tables",
    "routes.RouteEntryRow": "the published table, derived from other tables",
    "sign_up.SignUp": "applicants without a tenant; deleted within a day",
    "tenants.StaffToken": "the operator's staff",
}
"""Models whose rows belong to no tenant -> reason. Each model needs a key to a tenant, or an entry here."""

KEPT: Final = {
    "audit.AuditChain": "the audit log",
    "audit.AuditRecord": "the audit log",
    "billing.BillingParty": "the basis of invoices",
    "billing.BudgetNotice": "record of the spending notices sent",
    "billing.CreditGrant": "the ledger",
    "billing.CreditNote": "the ledger",
    "billing.CreditNoteLine": "the ledger",
    "billing.CreditNotePdf": "the ledger",
    "billing.Invoice": "the ledger",
    "billing.InvoiceLine": "the ledger",
    "billing.InvoicePdf": "the ledger",
    "billing.JournalEntry": "the ledger",
    "billing.LedgerCheckpoint": "the ledger",
    "billing.LedgerHead": "the ledger",
    "billing.PostedDay": "the ledger",
    "billing.PrepaidMark": "record of the spending notices sent",
    "billing.PriceBookTerm": "the basis of invoices",
    "billing.TaxTreatment": "the basis of invoices",
    "billing.UsagePosting": "the ledger",
    "metering.HostingHour": "the basis of invoices",
    "metering.HostingSpan": "the basis of invoices",
    "metering.UsageEventRow": "the basis of invoices",
    "metering.UsageHour": "the basis of invoices",
    "metering.UsageRollup": "the basis of invoices",
}
"""Models whose rows stay when their tenant is deleted -> reason. They hold its name, not a key."""


def deletion_list() -> QuerySet[TenantDeletion]:
    """List the deletions of tenants."""
    return TenantDeletion.objects.all()


def deletion_find(*, slug: str) -> TenantDeletion | None:
    """Return the tenant's deletion; None if no deletion is scheduled."""
    return TenantDeletion.objects.filter(pk=slug).first()


def deletion_get(*, slug: str) -> TenantDeletion:
    """Return the tenant's deletion. Raises NotFoundError."""
    deletion = deletion_find(slug=slug)
    if deletion is None:
        raise NotFoundError(f"tenant {slug!r} has no scheduled deletion")
    return deletion


def deletions_due(*, now: dt.datetime | None = None) -> QuerySet[TenantDeletion]:
    """List the deletions whose grace period is over."""
    return TenantDeletion.objects.filter(purged_at=None, purge_after__lte=now or timezone.now())


def tenant_paths() -> dict[type[Model], str]:
    """Map each model with tenants' rows to the look-up from a row to its tenant's id."""
    paths: dict[type[Model], str] = {Tenant: "pk", User: "memberships__tenant_id"}
    ours = [model for model in apps.get_models() if model.__module__.startswith("controlplane.")]
    waiting = [model for model in ours if model not in paths and model._meta.label not in NOBODYS]
    while waiting:
        found = {model: path for model in waiting if (path := _path(model, paths))}
        if not found:
            names = ", ".join(model._meta.label for model in waiting)
            raise LookupError(
                f"{names}: no foreign key path to a tenant; add an entry with the reason to NOBODYS"
            )
        paths |= found
        waiting = [model for model in waiting if model not in paths]
    return paths


def tenant_rows(*, slug: str, model: type[Model], path: str, chunk: int = 1000) -> Iterator[Model]:
    """Yield the tenant's rows of a model by primary key, with one query per chunk."""
    rows = model._default_manager.filter(**{path: slug}).order_by("pk").distinct()
    after: dict[str, Any] = {}
    while found := list(rows.filter(**after)[:chunk]):
        yield from found
        after = {"pk__gt": found[-1].pk}


def _path(model: type[Model], known: dict[type[Model], str]) -> str:
    names = {field.name: field for field in model._meta.concrete_fields}
    if "tenant" in names:
        return "tenant_id" if isinstance(names["tenant"], ForeignKey) else "tenant"
    if "tenant_slug" in names:
        return "tenant_slug"
    for field in names.values():
        if not isinstance(field, ForeignKey) or field.null or field.related_model is User:
            continue
        if (target := field.related_model) in known:
            return f"{field.name}__{known[target]}"
    return ""
