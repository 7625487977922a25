"""REST of the audit log: a tenant's own, and everybody's for staff."""

from __future__ import annotations

from typing import Final, cast

from django.db.models import QuerySet
from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import generics, serializers
from rest_framework.request import Request

from controlplane.platform.audit.export import CONTENT_TYPES, Form, export_lines
from controlplane.platform.audit.filters import (
    AuditFileFilter,
    AuditFilter,
    FleetAuditFileFilter,
    FleetAuditFilter,
)
from controlplane.platform.audit.models import AuditChain, AuditRecord
from controlplane.platform.audit.selectors import audit_chunks, audit_list, chain_get
from controlplane.platform.http.object_api import RetrieveApi
from controlplane.platform.http.streaming import streamed
from controlplane.tenants.permissions import Staff, request_tenant, tenant_may
from controlplane.tenants.roles import Permission

_FILE: Final = {(200, kind.partition(";")[0]): OpenApiTypes.STR for kind in CONTENT_TYPES.values()}


class ActorSerializer(serializers.ModelSerializer[AuditRecord]):
    kind = serializers.CharField(source="actor_kind", help_text=", ".join(AuditRecord.Kind.values))
    id = serializers.CharField(source="actor_id")
    name = serializers.CharField(source="actor_name")

    class Meta:
        model = AuditRecord
        fields = ("kind", "id", "name")


class TargetSerializer(serializers.ModelSerializer[AuditRecord]):
    type = serializers.CharField(source="target_type")
    id = serializers.CharField(source="target_id")
    name = serializers.CharField(source="target_name")

    class Meta:
        model = AuditRecord
        fields = ("type", "id", "name")


class AuditRecordSerializer(serializers.ModelSerializer[AuditRecord]):
    actor = ActorSerializer(source="*")
    target = TargetSerializer(source="*")
    before = serializers.DictField(allow_null=True)
    after = serializers.DictField(allow_null=True)

    class Meta:
        model = AuditRecord
        fields = (
            "tenant",
            "number",
            "at",
            "actor",
            "action",
            "target",
            "before",
            "after",
            "address",
            "user_agent",
            "request_id",
            "previous_sha256",
            "sha256",
        )


class AuditChainSerializer(serializers.ModelSerializer[AuditChain]):
    class Meta:
        model = AuditChain
        fields = ("number", "sha256", "pruned_through", "pruned_sha256")


class AuditApi(generics.ListAPIView[AuditRecord]):
    """The tenant's log, newest first."""

    permission_classes = (tenant_may(Permission.AUDIT_READ),)
    serializer_class = AuditRecordSerializer
    filterset_class = AuditFilter
    queryset = AuditRecord.objects.none()

    def get_queryset(self) -> QuerySet[AuditRecord]:
        return audit_list(tenant=request_tenant(self.request).pk)


class FleetAuditApi(generics.ListAPIView[AuditRecord]):
    """The logs of all tenants and of the platform, newest first."""

    permission_classes = (Staff,)
    serializer_class = AuditRecordSerializer
    filterset_class = FleetAuditFilter

    def get_queryset(self) -> QuerySet[AuditRecord]:
        return audit_list(tenant=None)


class _FileApi(generics.GenericAPIView[AuditRecord]):
    serializer_class = AuditRecordSerializer
    pagination_class = None

    def _file(self, request: Request, name: str) -> StreamingHttpResponse:
        records = self.filter_queryset(self.get_queryset())
        form = cast(Form, request.query_params.get("form") or "jsonl")
        lines = export_lines(audit_chunks(records=records), form)
        return streamed(
            request._request, lines, content_type=CONTENT_TYPES[form], file_name=f"audit-{name}.{form}"
        )


class AuditExportApi(_FileApi):
    permission_classes = (tenant_may(Permission.AUDIT_READ),)
    filterset_class = AuditFileFilter
    queryset = AuditRecord.objects.none()

    def get_queryset(self) -> QuerySet[AuditRecord]:
        return audit_list(tenant=request_tenant(self.request).pk)

    @extend_schema(responses=_FILE, filters=True)
    def get(self, request: Request) -> StreamingHttpResponse:
        """Exports the tenant's log as a file, oldest first."""
        return self._file(request, request_tenant(request).pk)


class FleetAuditExportApi(_FileApi):
    permission_classes = (Staff,)
    filterset_class = FleetAuditFileFilter

    def get_queryset(self) -> QuerySet[AuditRecord]:
        return audit_list(tenant=None)

    @extend_schema(responses=_FILE, filters=True)
    def get(self, request: Request) -> StreamingHttpResponse:
        """Exports the log of all tenants, or of one, as a file, oldest first."""
        return self._file(request, "fleet")


class AuditChainApi(RetrieveApi[AuditChain]):
    """Returns number and digest of the newest record. A copy of them proves the earlier records."""

    permission_classes = (tenant_may(Permission.AUDIT_READ),)
    serializer_class = AuditChainSerializer

    def get_object(self) -> AuditChain:
        return chain_get(tenant=request_tenant(self.request).pk)
