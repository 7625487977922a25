"""REST API of tenant export and deletion (staff)."""

from __future__ import annotations

from typing import Any

from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import generics, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.operations.export import export_download
from controlplane.operations.models import TenantDeletion
from controlplane.operations.selectors import deletion_get
from controlplane.operations.services import tenant_deletion_cancel, tenant_deletion_schedule
from controlplane.platform.http.object_api import ObjectApi, conditional
from controlplane.platform.http.strict import StrictSerializer
from controlplane.platform.idempotency.api import idempotent
from controlplane.tenants.permissions import Staff
from controlplane.tenants.selectors import tenant_get


class DeletionSerializer(serializers.ModelSerializer[TenantDeletion]):
    class Meta:
        model = TenantDeletion
        fields = ("tenant", "reason", "requested_by", "requested_at", "purge_after", "purged_at")


class DeletionInput(StrictSerializer):
    confirm = serializers.CharField(max_length=63, help_text="The tenant's id, as confirmation.")
    reason = serializers.CharField(max_length=500, required=False, allow_blank=True)


class TenantExportApi(generics.GenericAPIView[Any]):
    permission_classes = (Staff,)
    serializer_class = DeletionSerializer
    pagination_class = None

    @extend_schema(responses={(200, "application/x-tar"): OpenApiTypes.BINARY})
    def get(self, request: Request, slug: str) -> StreamingHttpResponse:
        """Exports all data of the tenant as a tar archive of any size; secrets are excluded."""
        return export_download(request._request, tenant_get(slug=slug))


class TenantDeletionApi(ObjectApi[TenantDeletion]):
    permission_classes = (Staff,)
    serializer_class = DeletionSerializer

    def get_object(self) -> TenantDeletion:
        return deletion_get(slug=self.kwargs["slug"])

    @conditional()
    def get(self, request: Request, slug: str) -> Response:
        return Response(DeletionSerializer(self.get_object()).data)

    @idempotent()
    @extend_schema(request=DeletionInput, responses={201: DeletionSerializer})
    def post(self, request: Request, slug: str) -> Response:
        """Disables the tenant immediately and schedules its purge after the grace period."""
        data = DeletionInput(data=request.data)
        data.is_valid(raise_exception=True)
        deletion = tenant_deletion_schedule(tenant=tenant_get(slug=slug), **data.validated_data)
        return Response(DeletionSerializer(deletion).data, status.HTTP_201_CREATED)

    @conditional()
    @extend_schema(responses={204: None})
    def delete(self, request: Request, slug: str) -> Response:
        """Cancels the deletion and enables the tenant again."""
        tenant_deletion_cancel(deletion=self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)
