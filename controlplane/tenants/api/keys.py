"""REST of API keys."""

from __future__ import annotations

from typing import Any, Final

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import generics, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from contracts.keys import ENDPOINTS
from controlplane.platform.http.object_api import RetrieveApi, conditional
from controlplane.platform.http.strict import StrictSerializer, validated
from controlplane.platform.idempotency.api import idempotent
from controlplane.tenants.filters import ApiKeyFilter
from controlplane.tenants.models import ApiKey, Tenant
from controlplane.tenants.permissions import request_access, request_tenant, request_user, tenant_may
from controlplane.tenants.roles import Permission
from controlplane.tenants.selectors import api_key_get, api_key_list, project_get, service_account_get
from controlplane.tenants.services import api_key_create, api_key_revoke, api_key_rotate, api_key_update

_RESTRICTIONS: Final = ("allowed_models", "allowed_endpoints", "allowed_networks")


def _texts(help_text: str) -> serializers.ListField:
    return serializers.ListField(
        child=serializers.CharField(max_length=300), required=False, allow_null=True, help_text=help_text
    )


class RestrictionsSerializer(StrictSerializer):
    """Restrictions of a key; null for none."""

    allowed_models = _texts(
        "`<base>`, `<adapter>` (with all its versions and aliases) or `<adapter>@<alias>`."
    )
    allowed_endpoints = _texts(f"Any of {', '.join(ENDPOINTS)}.")
    allowed_networks = _texts("IPv4 or IPv6 addresses or CIDR blocks. They apply to this API too.")


class ApiKeySerializer(RestrictionsSerializer, serializers.ModelSerializer[ApiKey]):
    scopes = serializers.ListField(child=serializers.ChoiceField(choices=ApiKey.Scope.choices))
    project = serializers.SlugRelatedField(slug_field="slug", read_only=True)  # type: ignore[var-annotated]
    service_account = serializers.SlugRelatedField(  # type: ignore[var-annotated]
        slug_field="name", read_only=True, allow_null=True
    )

    class Meta:
        model = ApiKey
        fields = (
            "public_id",
            "name",
            "project",
            "service_account",
            "scopes",
            *_RESTRICTIONS,
            "created_at",
            "expires_at",
            "rotated_at",
            "old_secret_until",
            "revoked_at",
            "last_used_at",
        )


class ApiKeyCreatedSerializer(ApiKeySerializer):
    key = serializers.CharField(help_text="The secret key. It is shown only once.")

    class Meta:
        model = ApiKey
        fields = (*ApiKeySerializer.Meta.fields, "key")


class ApiKeyInput(RestrictionsSerializer):
    name = serializers.CharField(max_length=100)
    scopes = serializers.ListField(child=serializers.ChoiceField(choices=ApiKey.Scope.choices))
    expires_at = serializers.DateTimeField(required=False, allow_null=True)
    project = serializers.CharField(
        max_length=63,
        required=False,
        help_text="Project slug. Defaults to the service account's project, or `default`.",
    )
    service_account = serializers.CharField(
        max_length=63,
        required=False,
        allow_null=True,
        help_text="Name of the service account that owns the key.",
    )


class ApiKeyChangesInput(RestrictionsSerializer):
    expires_at = serializers.DateTimeField(required=False, allow_null=True)


class RotationInput(StrictSerializer):
    old_secret_until = serializers.DateTimeField(
        required=False, allow_null=True, help_text="When the old secret expires. Null expires it now."
    )


class ApiKeysApi(generics.ListAPIView[ApiKey]):
    permission_classes = (tenant_may(Permission.KEYS_READ, Permission.KEYS_WRITE),)
    serializer_class = ApiKeySerializer
    filterset_class = ApiKeyFilter
    queryset = ApiKey.objects.none()  # tells the schema the model

    def get_queryset(self) -> QuerySet[ApiKey]:
        return api_key_list(tenant=request_tenant(self.request))

    @idempotent()
    @extend_schema(request=ApiKeyInput, responses={201: ApiKeyCreatedSerializer})
    def post(self, request: Request) -> Response:
        """Creates a key. Scope `inference` calls models, `manage` this API; `usage` reads project usage.

        With scope `usage:write` a service account's key reports usage from outside, as CloudEvents.
        """
        tenant, values = request_tenant(request), validated(ApiKeyInput, request.data)
        api_key, text = api_key_create(
            tenant=tenant,
            by=request_access(request),
            created_by=request_user(request),
            **_owner(tenant, values.pop("project", None), values.pop("service_account", None)),
            **values,
        )
        body = {**ApiKeySerializer(api_key).data, "key": text}
        return Response(body, status.HTTP_201_CREATED)


class ApiKeyApi(RetrieveApi[ApiKey]):
    permission_classes = (tenant_may(Permission.KEYS_READ, Permission.KEYS_WRITE),)
    serializer_class = ApiKeySerializer
    etag_ignores = frozenset({"last_used_at"})

    def get_object(self) -> ApiKey:
        return api_key_get(tenant=request_tenant(self.request), public_id=self.kwargs["public_id"])

    @conditional()
    @extend_schema(request=ApiKeyChangesInput)
    def patch(self, request: Request, public_id: str) -> Response:
        """Changes the key's restrictions and expiry; omitted fields stay unchanged."""
        values = validated(ApiKeyChangesInput, request.data)
        changed = api_key_update(api_key=self.get_object(), by=request_access(request), **values)
        return Response(ApiKeySerializer(changed).data)

    @conditional()
    def delete(self, request: Request, public_id: str) -> Response:
        """Revokes the key; within a second no gateway accepts it."""
        api_key_revoke(api_key=self.get_object(), by=request_access(request))
        return Response(status=status.HTTP_204_NO_CONTENT)


class ApiKeyRotationApi(APIView):
    permission_classes = (tenant_may(Permission.KEYS_READ, Permission.KEYS_WRITE),)

    @idempotent()
    @extend_schema(request=RotationInput, responses={200: ApiKeyCreatedSerializer})
    def post(self, request: Request, public_id: str) -> Response:
        """Rotates the key's secret; the public id stays, the old secret is valid until `old_secret_until`."""
        values = validated(RotationInput, request.data)
        api_key = api_key_get(tenant=request_tenant(request), public_id=public_id)
        api_key, text = api_key_rotate(api_key=api_key, by=request_access(request), **values)
        return Response({**ApiKeySerializer(api_key).data, "key": text})


def _owner(tenant: Tenant, project: str | None, account: str | None) -> dict[str, Any]:
    return {
        "project": project_get(tenant=tenant, slug=project) if project else None,
        "service_account": service_account_get(tenant=tenant, name=account) if account else None,
    }
