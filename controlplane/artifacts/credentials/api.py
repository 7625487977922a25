"""REST of source credentials: what imports log in with. A secret goes in and never comes out."""

from __future__ import annotations

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import generics, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.artifacts.credentials.models import SourceCredential
from controlplane.artifacts.credentials.selectors import credential_get, credential_list
from controlplane.artifacts.credentials.services import credential_create, credential_delete
from controlplane.platform.http.object_api import ObjectApi, conditional
from controlplane.platform.http.strict import StrictSerializer
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
        max_length=500, write_only=True, help_text="A hub's token, or an S3 secret key. Never shown again."
    )
    endpoint = serializers.CharField(
        max_length=500, required=False, help_text="S3 API, as https://minio.example; AWS's when left out."
    )
    region = serializers.CharField(max_length=40, required=False)
    access_key_id = serializers.CharField(max_length=128, required=False)


class SourceCredentialsApi(generics.ListAPIView[SourceCredential]):
    permission_classes = (tenant_may(Permission.ADAPTERS_READ, Permission.ADAPTERS_WRITE),)
    serializer_class = SourceCredentialSerializer
    queryset = SourceCredential.objects.none()  # tells the schema the model

    def get_queryset(self) -> QuerySet[SourceCredential]:
        return credential_list(tenant=request_tenant(self.request))

    @idempotent()
    @extend_schema(request=SourceCredentialInput, responses={201: SourceCredentialSerializer})
    def post(self, request: Request) -> Response:
        """Keeps a hub's token or an S3 access key, to be named when an adapter is registered."""
        data = SourceCredentialInput(data=request.data)
        data.is_valid(raise_exception=True)
        credential = credential_create(
            tenant=request_tenant(request), created_by=request_user(request), **data.validated_data
        )
        return Response(SourceCredentialSerializer(credential).data, status.HTTP_201_CREATED)


class SourceCredentialApi(ObjectApi[SourceCredential]):
    permission_classes = (tenant_may(Permission.ADAPTERS_READ, Permission.ADAPTERS_WRITE),)
    serializer_class = SourceCredentialSerializer
    etag_ignores = frozenset({"used_at"})

    def get_object(self) -> SourceCredential:
        return credential_get(tenant=request_tenant(self.request), name=self.kwargs["name"])

    @conditional()
    def get(self, request: Request, name: str) -> Response:
        return Response(SourceCredentialSerializer(self.get_object()).data)

    @conditional()
    @extend_schema(responses={204: None})
    def delete(self, request: Request, name: str) -> Response:
        """Forgets the credential; imports that name it are refused from now on."""
        credential_delete(credential=self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)
