"""REST API of source credentials, which imports authenticate with. Secrets are write-only."""

from __future__ import annotations

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import generics, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.artifacts.credentials.models import SourceCredential
from controlplane.artifacts.credentials.selectors import credential_get, credential_list
from controlplane.artifacts.credentials.services import credential_create, credential_delete
from controlplane.platform.http.object_api import RetrieveApi, conditional
from controlplane.platform.http.strict import StrictSerializer, validated
from controlplane.platform.idempotency.api import idempotent
from controlplane.tenants.permissions import request_tenant, request_user, tenant_may
from controlplane.tenants.roles import Permission


class SourceCredentialSerializer(serializers.ModelSerializer[SourceCredential]):
    class Meta:
        model = SourceCredential
        fields = ("name", "kind", "endpoint", "region", "access_key_id", "created_at", "used_at")


class SourceCredentialInput(StrictSerializer):
    name = serializers.CharField(max_length=63)
    kind = serializers.ChoiceField(choices=SourceCredential.Kind.choices)
    secret = serializers.CharField(
        max_length=500, write_only=True, help_text="Hub token, or S3 secret access key; never returned."
    )
    endpoint = serializers.CharField(
        max_length=500,
        required=False,
        help_text="S3 endpoint, such as https://minio.example; AWS if omitted.",
    )
    region = serializers.CharField(max_length=40, required=False)
    access_key_id = serializers.CharField(max_length=128, required=False)


class SourceCredentialsApi(generics.ListAPIView[SourceCredential]):
    permission_classes = (tenant_may(Permission.ADAPTERS_READ, Permission.ADAPTERS_WRITE),)
    serializer_class = SourceCredentialSerializer
    queryset = SourceCredential.objects.none()  # names the model for the schema

    def get_queryset(self) -> QuerySet[SourceCredential]:
        return credential_list(tenant=request_tenant(self.request))

    @idempotent()
    @extend_schema(request=SourceCredentialInput, responses={201: SourceCredentialSerializer})
    def post(self, request: Request) -> Response:
        """Stores a hub token or an S3 access key, for use in registrations of adapters."""
        credential = credential_create(
            tenant=request_tenant(request),
            created_by=request_user(request),
            **validated(SourceCredentialInput, request.data),
        )
        return Response(SourceCredentialSerializer(credential).data, status.HTTP_201_CREATED)


class SourceCredentialApi(RetrieveApi[SourceCredential]):
    permission_classes = (tenant_may(Permission.ADAPTERS_READ, Permission.ADAPTERS_WRITE),)
    serializer_class = SourceCredentialSerializer
    etag_ignores = frozenset({"used_at"})

    def get_object(self) -> SourceCredential:
        return credential_get(tenant=request_tenant(self.request), name=self.kwargs["name"])

    @conditional()
    def delete(self, request: Request, name: str) -> Response:
        """Deletes the credential; imports that name it are refused afterwards."""
        credential_delete(credential=self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)
