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
    "adapters.ArtifactRemoval": "files under the address of their content",
    "billing.HostingPrice": "the operator's prices",
    "billing.Price": "the operator's prices",
    "billing.PriceBook": "the operator's prices",
    "catalog.BaseModel": "the operator's models",
    "catalog.CheckpointFile": "the operator's models",
    "catalog.Variant": "the operator's models",
    "deployments.AdapterRule": "what was asked of the operator's servers; gone with the version's route",
    "deployments.Copy": "the operator's servers",
    "deployments.Deployment": "the operator's servers",
    "deployments.DeploymentRollout": "what was done to the operator's servers",
    "deployments.DeploymentStep": "what was done to the operator's servers",
    "deployments.Placement": "made from the published table, and gone with its entries",
    "deployments.ScaleUp": "the operator's servers",
    "deployments.Scaling": "the operator's servers",
    "deployments.Target": "where the operator's servers are",
    "idempotency.KeptAnswer": "sealed under keys that only callers have; forgotten within a day",
    "metering.HostingLook": "when the operator's servers were last looked at",
    "operations.TenantDeletion": "says that the tenant is gone",
    "optimization.Artifact": "the operator's optimized checkpoints",
    "optimization.Assessment": "what the operator asked of SageMaker",
    "optimization.Attempt": "the operator's optimization jobs",
    "optimization.ComparisonRun": "the operator's comparisons",
    "optimization.OptimizationJob": "the operator's optimization jobs",
    "optimization.PromptSet": "prompts that the operator gave",
    "optimization.WorkEvent": "the operator's optimization jobs",
    "reports.InstancePrice": "what the operator's machines cost",
    "routes.RouteCounter": "the published table, made from the others",
    "routes.RouteDelta": "the published table, made from the others",
    "routes.RouteEntryRow": "the published table, made from the others",
    "sign_up.SignUp": "who has no tenant yet; forgotten within a day",
}
"""Models whose rows belong to no tenant -> reason. A new model has a key to its tenant, or an entry here."""

KEPT: Final = {
    "audit.AuditChain": "the audit log",
    "audit.AuditRecord": "the audit log",
    "billing.BillingParty": "what bills were made from",
    "billing.BudgetNotice": "who was told of what was spent",
    "billing.CreditGrant": "the books",
    "billing.CreditNote": "the books",
    "billing.CreditNoteLine": "the books",
    "billing.CreditNotePdf": "the books",
    "billing.Invoice": "the books",
    "billing.InvoiceLine": "the books",
    "billing.InvoicePdf": "the books",
    "billing.JournalEntry": "the books",
    "billing.LedgerCheckpoint": "the books",
    "billing.LedgerHead": "the books",
    "billing.PostedDay": "the books",
    "billing.PrepaidMark": "who was told of what was spent",
    "billing.PriceBookTerm": "what bills were made from",
    "billing.TaxTreatment": "what bills were made from",
    "billing.UsagePosting": "the books",
    "metering.HostingHour": "what bills were made from",
    "metering.HostingSpan": "what bills were made from",
    "metering.UsageEventRow": "what bills were made from",
    "metering.UsageHour": "what bills were made from",
    "metering.UsageRollup": "what bills were made from",
}
"""Models whose rows stay when their tenant is deleted -> reason. They hold its name, not a key."""


def deletion_list() -> QuerySet[TenantDeletion]:
    """List the deletions of tenants."""
    return TenantDeletion.objects.all()


def deletion_find(*, slug: str) -> TenantDeletion | None:
    """Return the tenant's deletion; None if it is not to be deleted."""
    return TenantDeletion.objects.filter(pk=slug).first()


def deletion_get(*, slug: str) -> TenantDeletion:
    """Return the tenant's deletion. Raises NotFoundError."""
    deletion = deletion_find(slug=slug)
    if deletion is None:
        raise NotFoundError(f"tenant {slug!r} is not to be deleted")
    return deletion


def deletions_due(*, now: dt.datetime | None = None) -> QuerySet[TenantDeletion]:
    """List the deletions whose grace time is over."""
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
            raise LookupError(f"{names}: no key leads to a tenant; state why in NOBODYS")
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
    for field in names.values():
        if not isinstance(field, ForeignKey) or field.null or field.related_model is User:
            continue
        if (target := field.related_model) in known:
            return f"{field.name}__{known[target]}"
    return ""
