"""REST of keys (tenants) and of tenants and users (staff)."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import generics, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.tenants.models import ApiKey, Membership, Tenant, User
from controlplane.tenants.permissions import Staff, TenantManager, request_tenant, request_user
from controlplane.tenants.selectors import (
    api_key_get,
    api_key_list,
    tenant_get,
    tenant_list,
    user_list,
)
from controlplane.tenants.services import api_key_create, api_key_revoke, tenant_create, user_create


class ApiKeySerializer(serializers.ModelSerializer[ApiKey]):
    scopes = serializers.ListField(child=serializers.ChoiceField(choices=ApiKey.Scope.choices))

    class Meta:
        model = ApiKey
        fields = ("public_id", "name", "project", "scopes", "created_at", "expires_at", "revoked_at")


class ApiKeyCreatedSerializer(ApiKeySerializer):
    key = serializers.CharField(help_text="The key itself. Shown now and never again.")

    class Meta:
        model = ApiKey
        fields = (*ApiKeySerializer.Meta.fields, "key")


class ApiKeyInput(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=100)
    scopes = serializers.ListField(child=serializers.ChoiceField(choices=ApiKey.Scope.choices))
    expires_at = serializers.DateTimeField(required=False, allow_null=True)


class ApiKeysApi(generics.ListAPIView[ApiKey]):
    permission_classes = (TenantManager,)
    serializer_class = ApiKeySerializer

    def get_queryset(self) -> QuerySet[ApiKey]:
        return api_key_list(tenant=request_tenant(self.request))

    @extend_schema(request=ApiKeyInput, responses={201: ApiKeyCreatedSerializer})
    def post(self, request: Request) -> Response:
        """Makes a key. Scope `inference` calls models, scope `manage` this API."""
        data = ApiKeyInput(data=request.data)
        data.is_valid(raise_exception=True)
        api_key, text = api_key_create(
            tenant=request_tenant(request), created_by=request_user(request), **data.validated_data
        )
        body = {**ApiKeySerializer(api_key).data, "key": text}
        return Response(body, status.HTTP_201_CREATED)


class ApiKeyApi(generics.GenericAPIView[ApiKey]):
    permission_classes = (TenantManager,)
    serializer_class = ApiKeySerializer

    def get(self, request: Request, public_id: str) -> Response:
        api_key = api_key_get(tenant=request_tenant(request), public_id=public_id)
        return Response(ApiKeySerializer(api_key).data)

    @extend_schema(responses={204: None})
    def delete(self, request: Request, public_id: str) -> Response:
        """Revokes the key: within a second no gateway takes it."""
        api_key_revoke(api_key=api_key_get(tenant=request_tenant(request), public_id=public_id))
        return Response(status=status.HTTP_204_NO_CONTENT)


class TenantSerializer(serializers.ModelSerializer[Tenant]):
    class Meta:
        model = Tenant
        fields = ("id", "name", "created_at")
        read_only_fields = ("created_at",)
        # The service tells a taken id apart (409) from a malformed one (400).
        extra_kwargs: ClassVar[dict[str, Any]] = {"id": {"validators": []}}


class TenantsApi(generics.ListAPIView[Tenant]):
    permission_classes = (Staff,)
    serializer_class = TenantSerializer

    def get_queryset(self) -> QuerySet[Tenant]:
        return tenant_list()

    @extend_schema(request=TenantSerializer, responses={201: TenantSerializer})
    def post(self, request: Request) -> Response:
        data = TenantSerializer(data=request.data)
        data.is_valid(raise_exception=True)
        tenant = tenant_create(slug=data.validated_data["id"], name=data.validated_data["name"])
        return Response(TenantSerializer(tenant).data, status.HTTP_201_CREATED)


class TenantApi(generics.GenericAPIView[Tenant]):
    permission_classes = (Staff,)
    serializer_class = TenantSerializer

    def get(self, request: Request, slug: str) -> Response:
        return Response(TenantSerializer(tenant_get(slug=slug)).data)


class MembershipSerializer(serializers.ModelSerializer[Membership]):
    class Meta:
        model = Membership
        fields = ("tenant", "role")


class UserSerializer(serializers.ModelSerializer[User]):
    memberships = MembershipSerializer(many=True)

    class Meta:
        model = User
        fields = ("id", "email", "is_staff", "is_active", "created_at", "memberships")


class UserInput(serializers.Serializer[Any]):
    email = serializers.EmailField()
    password = serializers.CharField(max_length=200)
    tenant = serializers.CharField(required=False, help_text="Id of the tenant to join.")
    role = serializers.ChoiceField(choices=Membership.Role.choices, default=Membership.Role.OWNER)
    is_staff = serializers.BooleanField(default=False)


class UsersApi(generics.ListAPIView[User]):
    permission_classes = (Staff,)
    serializer_class = UserSerializer

    def get_queryset(self) -> QuerySet[User]:
        return user_list()

    @extend_schema(request=UserInput, responses={201: UserSerializer})
    def post(self, request: Request) -> Response:
        data = UserInput(data=request.data)
        data.is_valid(raise_exception=True)
        values = dict(data.validated_data)
        tenant = tenant_get(slug=values.pop("tenant")) if "tenant" in values else None
        user = user_create(tenant=tenant, **values)
        return Response(UserSerializer(user).data, status.HTTP_201_CREATED)
