"""REST of adapters, their versions and aliases."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import generics, status
from rest_framework.parsers import JSONParser, MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.adapters.models import Adapter, AdapterVersion, Alias
from controlplane.adapters.selectors import (
    adapter_get,
    adapter_list,
    alias_get,
    alias_list,
    version_get,
    version_list,
)
from controlplane.adapters.serializers import (
    AdapterInput,
    AdapterSerializer,
    AliasInput,
    AliasSerializer,
    PinInput,
    VersionInput,
    VersionSerializer,
)
from controlplane.adapters.services import (
    adapter_delete,
    adapter_pin,
    adapter_register,
    alias_move,
    alias_remove,
    files_by_name,
)
from controlplane.catalog.models import BaseModel
from controlplane.catalog.selectors import base_model_get
from controlplane.tenants.permissions import TenantManager, request_tenant, request_user


def _register(request: Request, name: str, base_model: BaseModel, values: dict[str, Any]) -> Response:
    version = adapter_register(
        tenant=request_tenant(request),
        name=name,
        base_model=base_model,
        files=files_by_name(values["files"]) if "files" in values else None,
        uri=values.get("uri"),
        created_by=request_user(request),
    )
    return Response(VersionSerializer(version).data, status.HTTP_201_CREATED)


class AdaptersApi(generics.ListAPIView[Adapter]):
    permission_classes = (TenantManager,)
    serializer_class = AdapterSerializer
    parser_classes = (MultiPartParser, JSONParser)

    def get_queryset(self) -> QuerySet[Adapter]:
        return adapter_list(tenant=request_tenant(self.request))

    @extend_schema(request=AdapterInput, responses={201: VersionSerializer})
    def post(self, request: Request) -> Response:
        """Registers an adapter, or the next version of one. Watch the version until ready or refused."""
        data = AdapterInput(data=request.data)
        data.is_valid(raise_exception=True)
        values = data.validated_data
        return _register(request, values["name"], base_model_get(name=values["base_model"]), values)


class AdapterApi(generics.GenericAPIView[Adapter]):
    permission_classes = (TenantManager,)
    serializer_class = AdapterSerializer

    def get(self, request: Request, name: str) -> Response:
        return Response(AdapterSerializer(adapter_get(tenant=request_tenant(request), name=name)).data)

    @extend_schema(responses={204: None})
    def delete(self, request: Request, name: str) -> Response:
        """Deletes the adapter with all versions and aliases. Usage stays."""
        adapter_delete(adapter=adapter_get(tenant=request_tenant(request), name=name))
        return Response(status=status.HTTP_204_NO_CONTENT)


class PinApi(generics.GenericAPIView[Adapter]):
    permission_classes = (TenantManager,)
    serializer_class = AdapterSerializer

    @extend_schema(request=PinInput, responses=AdapterSerializer)
    def put(self, request: Request, name: str) -> Response:
        """Sets which version the bare name means."""
        tenant = request_tenant(request)
        adapter = adapter_get(tenant=tenant, name=name)
        data = PinInput(data=request.data)
        data.is_valid(raise_exception=True)
        adapter_pin(adapter=adapter, number=data.validated_data["version"])
        return Response(AdapterSerializer(adapter_get(tenant=tenant, name=name)).data)


class VersionsApi(generics.ListAPIView[AdapterVersion]):
    permission_classes = (TenantManager,)
    serializer_class = VersionSerializer
    parser_classes = (MultiPartParser, JSONParser)

    def get_queryset(self) -> QuerySet[AdapterVersion]:
        if getattr(self, "swagger_fake_view", False):
            return AdapterVersion.objects.none()
        adapter = adapter_get(tenant=request_tenant(self.request), name=self.kwargs["name"])
        return version_list(adapter=adapter)

    @extend_schema(request=VersionInput, responses={201: VersionSerializer})
    def post(self, request: Request, name: str) -> Response:
        """Registers the next version of an adapter that there is."""
        adapter = adapter_get(tenant=request_tenant(request), name=name)
        data = VersionInput(data=request.data)
        data.is_valid(raise_exception=True)
        return _register(request, name, adapter.base_model, data.validated_data)


class VersionApi(generics.GenericAPIView[AdapterVersion]):
    permission_classes = (TenantManager,)
    serializer_class = VersionSerializer

    def get(self, request: Request, name: str, number: int) -> Response:
        adapter = adapter_get(tenant=request_tenant(request), name=name)
        return Response(VersionSerializer(version_get(adapter=adapter, number=number)).data)


class AliasesApi(generics.ListAPIView[Alias]):
    permission_classes = (TenantManager,)
    serializer_class = AliasSerializer

    def get_queryset(self) -> QuerySet[Alias]:
        if getattr(self, "swagger_fake_view", False):
            return Alias.objects.none()
        return alias_list(adapter=adapter_get(tenant=request_tenant(self.request), name=self.kwargs["name"]))


class AliasApi(generics.GenericAPIView[Alias]):
    permission_classes = (TenantManager,)
    serializer_class = AliasSerializer

    def get(self, request: Request, name: str, alias: str) -> Response:
        adapter = adapter_get(tenant=request_tenant(request), name=name)
        return Response(AliasSerializer(alias_get(adapter=adapter, name=alias)).data)

    @extend_schema(request=AliasInput, responses=AliasSerializer)
    def put(self, request: Request, name: str, alias: str) -> Response:
        """Points the alias at a ready version, making it if need be; in force within a second."""
        adapter = adapter_get(tenant=request_tenant(request), name=name)
        data = AliasInput(data=request.data)
        data.is_valid(raise_exception=True)
        moved = alias_move(adapter=adapter, name=alias, number=data.validated_data["version"])
        return Response(AliasSerializer(moved).data)

    @extend_schema(responses={204: None})
    def delete(self, request: Request, name: str, alias: str) -> Response:
        adapter = adapter_get(tenant=request_tenant(request), name=name)
        alias_remove(alias=alias_get(adapter=adapter, name=alias))
        return Response(status=status.HTTP_204_NO_CONTENT)
