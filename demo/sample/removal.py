"""Removes the sample data. The audit log stays, as it does when a tenant is deleted."""

from __future__ import annotations

from typing import Final

from django.db import connection, transaction
from django.db.models import Model

from controlplane.adapters.lifecycle import adapter_delete, adapter_purge
from controlplane.adapters.models import Adapter
from controlplane.billing import models as billing
from controlplane.billing.ledger import append_only
from controlplane.billing.rates import rates_publish
from controlplane.deployments.models import Deployment, Target
from controlplane.deployments.reconciler import deployment_reconcile
from controlplane.deployments.services import deployment_remove
from controlplane.deployments.targets.services import target_remove
from controlplane.metering.models import (
    AdapterHour,
    LatencyHour,
    PendingLatencies,
    UsageEventRow,
    UsageHour,
    UsageRollup,
)
from controlplane.optimization.comparisons import comparison_remove
from controlplane.optimization.models import ComparisonRun, OptimizationJob
from controlplane.optimization.services import job_remove
from controlplane.tenants.limits.services import tenant_limits_set
from controlplane.tenants.models import ApiKey, Tenant
from controlplane.tenants.services import api_key_revoke
from demo.credentials import TENANTS
from demo.sample.canary import ADAPTER
from demo.sample.clock import acting_as_sample
from demo.sample.finance import DETAILS
from demo.sample.history import KEYS
from demo.sample.measured import COMPARISON, DEPLOYMENT, TARGET, VARIANT
from demo.sample.traffic import ENDPOINT

_TENANTS: Final = [plan.slug for plan in TENANTS]
_LEDGER: Final[tuple[type[Model], ...]] = (
    billing.UsagePosting,
    billing.JournalEntry,
    billing.CreditGrant,
    billing.Invoice,
    billing.PostedDay,
    billing.LedgerCheckpoint,
    billing.LedgerHead,
    billing.BudgetNotice,
)
"""Rows of a tenant's ledger, each before those that it refers to."""
_OF_INVOICES: Final[tuple[type[Model], ...]] = (billing.InvoicePdf, billing.InvoiceLine)


def sample_remove() -> None:
    """Remove everything that `history_add`, `deployment_add` and `optimization_add` made.

    The ledger cannot tell sample usage from other usage, so the demo tenants' ledgers and invoices are
    emptied. Usage that is not sample data is booked again within minutes.
    """
    with acting_as_sample():
        _remove_measured()
        _remove_deployment()
        for adapter in Adapter.objects.filter(tenant__in=_TENANTS, name=ADAPTER):
            if adapter.deleted_at is None:
                adapter_delete(adapter=adapter)
            adapter_purge(adapter=adapter)
        with transaction.atomic():
            _remove_usage()
            _remove_finance()


def _remove_measured() -> None:
    for comparison in ComparisonRun.objects.filter(name=COMPARISON):
        comparison_remove(comparison=comparison)
    for job in OptimizationJob.objects.filter(variant_name=VARIANT):
        job_remove(job=job)


def _remove_deployment() -> None:
    for deployment in Deployment.objects.filter(name=DEPLOYMENT, removed_at=None):
        deployment_remove(deployment=deployment)
        deployment_reconcile(deployment_id=deployment.pk)
    targets = Target.objects.filter(name=TARGET).exclude(
        deployments__removed_at=None, deployments__isnull=False
    )
    for target in targets:
        target_remove(target=target)


def _remove_usage() -> None:
    keys = ApiKey.objects.filter(tenant__in=_TENANTS, name__in=dict(KEYS))
    ids = list(keys.values_list("pk", flat=True))
    for used in (UsageEventRow, UsageRollup, UsageHour):
        used.objects.filter(tenant__in=_TENANTS, key_id__in=ids).delete()
    for measured in (AdapterHour, LatencyHour, PendingLatencies):
        measured.objects.filter(tenant__in=_TENANTS, endpoint=ENDPOINT).delete()
    for key in keys:
        api_key_revoke(api_key=key)
    keys.delete()


def _remove_finance() -> None:
    for tenant in Tenant.objects.filter(pk__in=_TENANTS):
        tenant_limits_set(tenant=tenant)
    billing.Price.objects.filter(adapter__in=[f"{tenant}/{ADAPTER}" for tenant in _TENANTS]).delete()
    rates_publish()
    names = [values["legal_name"] for values in DETAILS.values()]
    billing.BillingParty.objects.filter(legal_name__in=names).delete()
    append_only.remove(connection)
    with connection.cursor() as cursor:
        invoices = f"SELECT id FROM {billing.Invoice._meta.db_table} WHERE tenant = %s"  # noqa: S608
        for name in _TENANTS:
            for model in _OF_INVOICES:
                cursor.execute(
                    f"DELETE FROM {model._meta.db_table} WHERE invoice_id IN ({invoices})",  # noqa: S608
                    [name],
                )
            for model in _LEDGER:
                cursor.execute(f"DELETE FROM {model._meta.db_table} WHERE tenant = %s", [name])  # noqa: S608
    # PostgreSQL creates no trigger on a table whose foreign keys are still to be checked.
    connection.check_constraints()
    append_only.install(connection)
