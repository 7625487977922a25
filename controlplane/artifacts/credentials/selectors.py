"""Reads of source credentials."""

from __future__ import annotations

from django.db.models import QuerySet

from controlplane.artifacts.credentials.models import SourceCredential
from controlplane.platform.row_lookup import row_get
from controlplane.tenants.models import Tenant


def credential_list(*, tenant: Tenant) -> QuerySet[SourceCredential]:
    """The tenant's, by name."""
    return SourceCredential.objects.filter(tenant=tenant).order_by("name")


def credential_get(*, tenant: Tenant, name: str) -> SourceCredential:
    """Raises NotFoundError, also for another tenant's."""
    rows = credential_list(tenant=tenant).filter(name=name)
    return row_get(rows, f"tenant {tenant.pk} has no credential {name[:63]!r}")
