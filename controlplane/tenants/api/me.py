"""REST of the caller's identity."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.platform.http.object_api import ObjectApi, conditional
from controlplane.tenants.models import ApiKey, Tenant
from controlplane.tenants.permissions import request_access, request_tenant, request_user, tenant_may
from controlplane.tenants.roles import Permission, Role


class IdentitySerializer(serializers.Serializer[Any]):
    tenant = serializers.CharField(help_text="Id of the caller's tenant.")
    tenant_name = serializers.CharField()
    role = serializers.ChoiceField(choices=Role.choices)
    permissions = serializers.ListField(child=serializers.ChoiceField(choices=[*Permission]))
    key = serializers.CharField(allow_null=True, help_text="Public id of the API key; null for a user.")
    email = serializers.CharField(
        allow_null=True, help_text="E-mail address of the user; null for an API key."
    )
    gateway_url = serializers.CharField(help_text="Base URL for inference; ends in /v1.")


class MeApi(ObjectApi[Tenant]):
    permission_classes = (tenant_may(Permission.TENANT_READ),)
    serializer_class = IdentitySerializer

    @conditional()
    def get(self, request: Request) -> Response:
        """Returns the caller, the tenant it acts for, and its permissions there."""
        tenant, access, user = request_tenant(request), request_access(request), request_user(request)
        body = {
            "tenant": tenant.pk,
            "tenant_name": tenant.name,
            "role": access and access.role,
            "permissions": sorted(access.permissions) if access else [],
            "key": request.auth.pk if isinstance(request.auth, ApiKey) else None,
            "email": user and user.email,
            "gateway_url": settings.GRAFTWORK.gateway_url,
        }
        return Response(IdentitySerializer(body).data)
