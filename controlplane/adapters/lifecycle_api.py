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
from controlplane.adapters.lifecycle import adapter_purge, adapter_restore, version_restore
from controlplane.adapters.models import Adapter, AdapterQuota, AdapterVersion, Alias, AliasChange
from controlplane.adapters.quotas import quota_get, quota_set, quota_use
from controlplane.adapters.selectors import adapter_get, alias_change_list, alias_get, version_get
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
from controlplane.platform.idempotency.api import idempotent
from controlplane.tenants.models import Tenant
from controlplane.tenants.permissions import Staff, request_tenant, tenant_may
from controlplane.tenants.roles import Permission
from controlplane.tenants.selectors import tenant_get


class AdapterRestoreApi(ObjectApi[Adapter]):
    permission_classes = (tenant_may(Permission.ADAPTERS_READ, Permission.ADAPTERS_WRITE),)
    serializer_class = AdapterSerializer

    def get_object(self) -> Adapter:
        return adapter_get(tenant=request_tenant(self.request), name=self.kwargs["name"], deleted=True)

    @idempotent()
    @extend_schema(request=None, responses=AdapterSerializer)
    def post(self, request: Request, name: str) -> Response:
        """Restores a deleted adapter with its versions and aliases."""
        adapter_restore(adapter=self.get_object())
        restored = adapter_get(tenant=request_tenant(request), name=name)
        return Response(AdapterSerializer(restored).data)


class AdapterPurgeApi(ObjectApi[Adapter]):
    permission_classes = (tenant_may(Permission.ADAPTERS_READ, Permission.ADAPTERS_WRITE),)
    serializer_class = AdapterSerializer

    def get_object(self) -> Adapter:
        return adapter_get(tenant=request_tenant(self.request), name=self.kwargs["name"], deleted=True)

    @idempotent(atomic=False)
    @extend_schema(request=None, responses={204: None})
    def post(self, request: Request, name: str) -> Response:
        """Permanently removes a deleted adapter before its grace time ends; usage is kept."""
        adapter_purge(adapter=self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)


class VersionRestoreApi(ObjectApi[AdapterVersion]):
    permission_classes = (tenant_may(Permission.ADAPTERS_READ, Permission.ADAPTERS_WRITE),)
    serializer_class = VersionSerializer

    @idempotent()
    @extend_schema(request=None, responses=VersionSerializer)
    def post(self, request: Request, name: str, number: int) -> Response:
        """Restores a deleted version."""
        adapter = adapter_get(tenant=request_tenant(request), name=name)
        version_restore(adapter=adapter, number=number)
        return Response(VersionSerializer(version_get(adapter=adapter, number=number)).data)


class AliasHistoryApi(generics.ListAPIView[AliasChange]):
    permission_classes = (tenant_may(Permission.ADAPTERS_READ),)
    serializer_class = AliasChangeSerializer
    queryset = AliasChange.objects.none()

    def get_queryset(self) -> QuerySet[AliasChange]:
        adapter = adapter_get(tenant=request_tenant(self.request), name=self.kwargs["name"])
        return alias_change_list(adapter=adapter, name=self.kwargs["alias"])


class AliasRollbackApi(ObjectApi[Alias]):
    permission_classes = (tenant_may(Permission.ADAPTERS_READ, Permission.ADAPTERS_WRITE),)
    serializer_class = AliasSerializer

    def get_object(self) -> Alias:
        adapter = adapter_get(tenant=request_tenant(self.request), name=self.kwargs["name"])
        return alias_get(adapter=adapter, name=self.kwargs["alias"])

    def row_to_lock(self, found: Alias) -> Adapter:
        return found.adapter

    @idempotent()
    @conditional()
    @extend_schema(request=RollbackInput, responses=AliasSerializer)
    def post(self, request: Request, name: str, alias: str) -> Response:
        """Reverts the alias to its state before the newest change, or after a given earlier change."""
        adapter = adapter_get(tenant=request_tenant(request), name=name)
        data = RollbackInput(data=request.data)
        data.is_valid(raise_exception=True)
        alias_rollback(adapter=adapter, name=alias, **data.validated_data)
        return Response(AliasSerializer(self.get_object()).data)


class DefaultRollbackApi(ObjectApi[Adapter]):
    permission_classes = (tenant_may(Permission.ADAPTERS_READ, Permission.ADAPTERS_WRITE),)
    serializer_class = AdapterSerializer

    def get_object(self) -> Adapter:
        return adapter_get(tenant=request_tenant(self.request), name=self.kwargs["name"])

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
    @extend_schema(request=QuotaSerializer, responses=QuotaUseSerializer)
    def put(self, request: Request, slug: str) -> Response:
        """Replaces the tenant's quota; omitted fields are unlimited."""
        data = QuotaSerializer(data=request.data)
        data.is_valid(raise_exception=True)
        tenant = self.get_object().tenant
        quota_set(tenant=tenant, **data.validated_data)
        return Response(_quota(tenant))


def _quota(tenant: Tenant) -> dict[str, Any]:
    quota, use = quota_get(tenant=tenant), asdict(quota_use(tenant=tenant))
    limits = {name: getattr(quota, name) for name in AdapterQuota.FIELDS}
    return limits | {f"used_{name}": value for name, value in use.items()}
