"""REST of adapters' lifecycle: history and rollback, restoring, purging, quotas."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import generics, status
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.adapters.aliases import alias_rollback, default_rollback
from controlplane.adapters.api import OfAdapter, OneAdapterApi, OneAliasApi
from controlplane.adapters.lifecycle import adapter_purge, adapter_restore, version_restore
from controlplane.adapters.models import AdapterQuota, AliasChange
from controlplane.adapters.quotas import quota_get, quota_set, quota_use
from controlplane.adapters.selectors import adapter_get, alias_change_list, version_get
from controlplane.adapters.serializers import (
    AdapterSerializer,
    AliasChangeSerializer,
    AliasSerializer,
    QuotaSerializer,
    QuotaUseSerializer,
    RollbackInput,
    VersionSerializer,
)
from controlplane.platform.http.object_api import ObjectApi, conditional
from controlplane.platform.http.strict import validated
from controlplane.platform.idempotency.api import idempotent
from controlplane.tenants.models import Tenant
from controlplane.tenants.permissions import Staff, request_tenant, tenant_may
from controlplane.tenants.roles import Permission
from controlplane.tenants.selectors import tenant_get


class AdapterRestoreApi(OfAdapter):
    permission_classes = (tenant_may(Permission.ADAPTERS_READ, Permission.ADAPTERS_WRITE),)

    @idempotent()
    @extend_schema(request=None, responses=AdapterSerializer)
    def post(self, request: Request, name: str) -> Response:
        """Restores a deleted adapter with its versions and aliases."""
        adapter_restore(adapter=adapter_get(tenant=request_tenant(request), name=name, deleted=True))
        return Response(AdapterSerializer(self.adapter()).data)


class AdapterPurgeApi(OfAdapter):
    permission_classes = (tenant_may(Permission.ADAPTERS_READ, Permission.ADAPTERS_WRITE),)

    @idempotent(atomic=False)
    @extend_schema(request=None, responses={204: None})
    def post(self, request: Request, name: str) -> Response:
        """Permanently removes a deleted adapter before its grace time ends; usage is kept."""
        adapter_purge(adapter=adapter_get(tenant=request_tenant(request), name=name, deleted=True))
        return Response(status=status.HTTP_204_NO_CONTENT)


class VersionRestoreApi(OfAdapter):
    permission_classes = (tenant_may(Permission.ADAPTERS_READ, Permission.ADAPTERS_WRITE),)

    @idempotent()
    @extend_schema(request=None, responses=VersionSerializer)
    def post(self, request: Request, name: str, number: int) -> Response:
        """Restores a deleted version."""
        adapter = self.adapter()
        version_restore(adapter=adapter, number=number)
        return Response(VersionSerializer(version_get(adapter=adapter, number=number)).data)


class AliasHistoryApi(OfAdapter, generics.ListAPIView[AliasChange]):
    permission_classes = (tenant_may(Permission.ADAPTERS_READ),)
    serializer_class = AliasChangeSerializer
    queryset = AliasChange.objects.none()

    def get_queryset(self) -> QuerySet[AliasChange]:
        return alias_change_list(adapter=self.adapter(), name=self.kwargs["alias"])


class AliasRollbackApi(OneAliasApi):
    permission_classes = (tenant_may(Permission.ADAPTERS_READ, Permission.ADAPTERS_WRITE),)

    @idempotent()
    @conditional()
    @extend_schema(request=RollbackInput, responses=AliasSerializer)
    def post(self, request: Request, name: str, alias: str) -> Response:
        """Reverts the alias to its state before the newest change, or after a given earlier change."""
        alias_rollback(adapter=self.adapter(), name=alias, **validated(RollbackInput, request.data))
        return Response(AliasSerializer(self.get_object()).data)


class DefaultRollbackApi(OneAdapterApi):
    permission_classes = (tenant_may(Permission.ADAPTERS_READ, Permission.ADAPTERS_WRITE),)

    @idempotent()
    @conditional()
    @extend_schema(request=None, responses=AdapterSerializer)
    def post(self, request: Request, name: str) -> Response:
        """Reverts the bare name to the version before its newest change, and pins it."""
        default_rollback(adapter=self.get_object())
        return Response(AdapterSerializer(self.get_object()).data)


class OwnQuotaApi(ObjectApi[AdapterQuota]):
    permission_classes = (tenant_may(Permission.ADAPTERS_READ),)
    serializer_class = QuotaUseSerializer

    @conditional()
    def get(self, request: Request) -> Response:
        """Returns the tenant's quota and its current use."""
        return Response(_quota(request_tenant(request)))


class TenantQuotaApi(ObjectApi[AdapterQuota]):
    permission_classes = (Staff,)
    serializer_class = QuotaUseSerializer
    etag_ignores = frozenset({"used_adapters", "used_versions", "used_size_bytes"})

    def get_object(self) -> AdapterQuota:
        return quota_get(tenant=tenant_get(slug=self.kwargs["slug"]))

    def row_to_lock(self, found: AdapterQuota) -> Tenant:
        return found.tenant

    def locked_etag(self) -> str:
        super().locked_etag()
        return self.etag(_quota(self.get_object().tenant))

    @conditional()
    def get(self, request: Request, slug: str) -> Response:
        return Response(_quota(self.get_object().tenant))

    @conditional(demanded=True)
    @extend_schema(request=QuotaSerializer)
    def put(self, request: Request, slug: str) -> Response:
        """Replaces the tenant's quota; omitted fields are unlimited."""
        values, tenant = validated(QuotaSerializer, request.data), self.get_object().tenant
        quota_set(tenant=tenant, **values)
        return Response(_quota(tenant))


def _quota(tenant: Tenant) -> dict[str, Any]:
    quota, use = quota_get(tenant=tenant), asdict(quota_use(tenant=tenant))
    limits = {name: getattr(quota, name) for name in AdapterQuota.FIELDS}
    return limits | {f"used_{name}": value for name, value in use.items()}
