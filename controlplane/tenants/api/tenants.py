"""REST of tenants and users, for staff."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import generics, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.platform.http.object_api import RetrieveApi, conditional
from controlplane.platform.http.strict import StrictSerializer, validated
from controlplane.platform.idempotency.api import idempotent
from controlplane.tenants.filters import TenantFilter, UserFilter
from controlplane.tenants.models import Membership, Tenant, User
from controlplane.tenants.permissions import Staff
from controlplane.tenants.roles import Role
from controlplane.tenants.selectors import tenant_get, tenant_list
from controlplane.tenants.services import tenant_create, tenant_resume, tenant_suspend, user_create
from controlplane.tenants.services.suspension import LONGEST_REASON


class TenantSerializer(StrictSerializer, serializers.ModelSerializer[Tenant]):
    class Meta:
        model = Tenant
        fields = ("id", "name", "created_at", "suspended_at")
        read_only_fields = ("created_at", "suspended_at")
        # The service answers 409 for a taken id and 400 for a malformed one.
        extra_kwargs: ClassVar[dict[str, Any]] = {"id": {"validators": []}}


class TenantsApi(generics.ListAPIView[Tenant]):
    permission_classes = (Staff,)
    serializer_class = TenantSerializer
    filterset_class = TenantFilter

    def get_queryset(self) -> QuerySet[Tenant]:
        return tenant_list()

    @idempotent()
    @extend_schema(request=TenantSerializer, responses={201: TenantSerializer})
    def post(self, request: Request) -> Response:
        values = validated(TenantSerializer, request.data)
        tenant = tenant_create(slug=values["id"], name=values["name"])
        return Response(TenantSerializer(tenant).data, status.HTTP_201_CREATED)


class TenantApi(RetrieveApi[Tenant]):
    permission_classes = (Staff,)
    serializer_class = TenantSerializer

    def get_object(self) -> Tenant:
        return tenant_get(slug=self.kwargs["slug"])


class SuspensionSerializer(serializers.ModelSerializer[Tenant]):
    tenant = serializers.CharField(source="id")
    reason = serializers.CharField(source="suspended_reason")

    class Meta:
        model = Tenant
        fields = ("tenant", "suspended_at", "reason")


class SuspensionInput(StrictSerializer):
    reason = serializers.CharField(
        max_length=LONGEST_REASON, help_text="Shown to the tenant's members on every page."
    )


class TenantSuspensionApi(RetrieveApi[Tenant]):
    """Returns time and reason of the suspension; null and "" if the tenant is not suspended."""

    permission_classes = (Staff,)
    serializer_class = SuspensionSerializer

    def get_object(self) -> Tenant:
        return tenant_get(slug=self.kwargs["slug"])

    @idempotent()
    @extend_schema(request=SuspensionInput, responses={201: SuspensionSerializer})
    def post(self, request: Request, slug: str) -> Response:
        """Suspends the tenant: within a second gateways refuse all its calls. Nothing is deleted."""
        values = validated(SuspensionInput, request.data)
        tenant = tenant_suspend(tenant=self.get_object(), reason=values["reason"])
        return Response(SuspensionSerializer(tenant).data, status.HTTP_201_CREATED)

    @conditional()
    def delete(self, request: Request, slug: str) -> Response:
        """Ends the suspension."""
        tenant_resume(tenant=self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)


class MembershipSerializer(serializers.ModelSerializer[Membership]):
    class Meta:
        model = Membership
        fields = ("tenant", "role")


class UserSerializer(serializers.ModelSerializer[User]):
    memberships = MembershipSerializer(many=True)

    class Meta:
        model = User
        fields = ("id", "email", "is_staff", "is_active", "created_at", "memberships")


class UserInput(StrictSerializer):
    email = serializers.EmailField()
    password = serializers.CharField(max_length=200)
    tenant = serializers.CharField(required=False, help_text="Id of the tenant to join.")
    role = serializers.ChoiceField(choices=Role.choices, default=Role.OWNER)
    is_staff = serializers.BooleanField(default=False)


class UsersApi(generics.ListAPIView[User]):
    permission_classes = (Staff,)
    serializer_class = UserSerializer
    filterset_class = UserFilter

    def get_queryset(self) -> QuerySet[User]:
        return User.objects.prefetch_related("memberships").order_by("email")

    @idempotent()
    @extend_schema(request=UserInput, responses={201: UserSerializer})
    def post(self, request: Request) -> Response:
        values = validated(UserInput, request.data)
        tenant = tenant_get(slug=values.pop("tenant")) if "tenant" in values else None
        user = user_create(tenant=tenant, **values)
        return Response(UserSerializer(user).data, status.HTTP_201_CREATED)
