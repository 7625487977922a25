"""REST of limits: staff sets a tenant's limits, the tenant sets lower ones for its keys."""

from __future__ import annotations

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.platform.http.object_api import RetrieveApi, conditional
from controlplane.platform.http.strict import StrictSerializer, validated
from controlplane.tenants.limits.models import ScopeLimits
from controlplane.tenants.limits.selectors import key_limits_get, tenant_limits_get
from controlplane.tenants.limits.services import key_limits_set, tenant_limits_set
from controlplane.tenants.models import ApiKey, Tenant
from controlplane.tenants.permissions import Staff, request_access, request_tenant, tenant_may
from controlplane.tenants.roles import Permission
from controlplane.tenants.selectors import api_key_get, tenant_get


class LimitsSerializer(StrictSerializer, serializers.ModelSerializer[ScopeLimits]):
    class Meta:
        model = ScopeLimits
        fields = ("scope", *ScopeLimits.FIELDS, "budget_alerted")
        read_only_fields = ("scope", "budget_alerted")


class TenantLimitsApi(RetrieveApi[ScopeLimits]):
    permission_classes = (Staff,)
    serializer_class = LimitsSerializer

    def get_object(self) -> ScopeLimits:
        return tenant_limits_get(tenant=tenant_get(slug=self.kwargs["slug"]))

    def row_to_lock(self, found: ScopeLimits) -> Tenant:
        return found.tenant

    @conditional(demanded=True)
    def put(self, request: Request, slug: str) -> Response:
        """Replaces the tenant's limits, effective within a second. Omitted limits are unlimited."""
        tenant = tenant_get(slug=slug)
        row = tenant_limits_set(tenant=tenant, **validated(LimitsSerializer, request.data))
        return Response(LimitsSerializer(row).data)


class OwnLimitsApi(RetrieveApi[ScopeLimits]):
    """Returns the tenant's limits, which staff sets."""

    permission_classes = (tenant_may(Permission.TENANT_READ),)
    serializer_class = LimitsSerializer

    def get_object(self) -> ScopeLimits:
        return tenant_limits_get(tenant=request_tenant(self.request))


class KeyLimitsApi(RetrieveApi[ScopeLimits]):
    permission_classes = (tenant_may(Permission.KEYS_READ, Permission.KEYS_WRITE),)
    serializer_class = LimitsSerializer

    def get_object(self) -> ScopeLimits:
        tenant = request_tenant(self.request)
        return key_limits_get(api_key=api_key_get(tenant=tenant, public_id=self.kwargs["public_id"]))

    def row_to_lock(self, found: ScopeLimits) -> ApiKey | Tenant:
        return found.api_key or found.tenant

    @conditional(demanded=True)
    def put(self, request: Request, public_id: str) -> Response:
        """Replaces the key's limits, each within the tenant's. Omitted limits are the tenant's."""
        api_key = api_key_get(tenant=request_tenant(request), public_id=public_id)
        values = validated(LimitsSerializer, request.data)
        row = key_limits_set(api_key=api_key, by=request_access(request), **values)
        return Response(LimitsSerializer(row).data)
