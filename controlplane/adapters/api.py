"""REST of adapters, their versions and aliases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import generics, status
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.adapters.aliases import adapter_pin, alias_move, alias_remove, alias_split, fallback_set
from controlplane.adapters.filters import AdapterFilter, AliasFilter, VersionFilter
from controlplane.adapters.intake import files_by_name
from controlplane.adapters.lifecycle import adapter_delete, adapter_update, version_delete, version_update
from controlplane.adapters.lineage import FIELDS
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
    AdapterChange,
    AdapterCheckInput,
    AdapterCheckSerializer,
    AdapterInput,
    AdapterSerializer,
    AliasInput,
    AliasSerializer,
    FallbackInput,
    PinInput,
    VersionChange,
    VersionDetailSerializer,
    VersionInput,
    VersionSerializer,
)
from controlplane.adapters.services import adapter_check, adapter_registration
from controlplane.catalog.models import BaseModel
from controlplane.catalog.selectors import base_model_get
from controlplane.platform.http.json_parser import StrictJSONParser
from controlplane.platform.http.object_api import ObjectApi, RetrieveApi, conditional
from controlplane.platform.http.strict import validated
from controlplane.platform.idempotency.api import idempotent, keep_with_change
from controlplane.tenants.models import Tenant
from controlplane.tenants.permissions import request_tenant, request_user, tenant_may
from controlplane.tenants.roles import Permission

IsCalled = Callable[..., bool]
"""`metering.adapter_use.adapter_is_called`, which this app may not import: `api_urls` hands it in."""


def _never(*, tenant: str, name: str) -> bool:
    return False


def _default_choice(is_called: IsCalled, tenant: Tenant, name: str, make_default: bool | None) -> bool | None:
    """Return `make_default`; if None, False for a bare name in use, so that it keeps its version."""
    if make_default is None and is_called(tenant=tenant.pk, name=name):
        return False
    return make_default


def _register(
    request: Request, name: str, base_model: BaseModel, values: dict[str, Any], is_called: IsCalled
) -> Response:
    tenant = request_tenant(request)
    with adapter_registration(
        tenant=tenant,
        name=name,
        base_model=base_model,
        files=files_by_name(values["files"]) if "files" in values else None,
        uri=values.get("uri"),
        credential=values.get("credential", ""),
        uploads=values.get("uploads"),
        lineage={field: values[field] for field in FIELDS if field in values},
        make_default=_default_choice(is_called, tenant, name, values["make_default"]),
        created_by=request_user(request),
    ) as version:
        response = Response(VersionSerializer(version).data, status=status.HTTP_201_CREATED)
        keep_with_change(request, response)
    return response


class OfAdapter(APIView):
    # A view below the path of one of the tenant's adapters. The schema would show a docstring for each.

    def adapter(self) -> Adapter:
        """Return the adapter. Raises NotFoundError."""
        return adapter_get(tenant=request_tenant(self.request), name=self.kwargs["name"])


class OneAdapterApi(OfAdapter, ObjectApi[Adapter]):
    """Returns the adapter."""

    serializer_class = AdapterSerializer

    def get_object(self) -> Adapter:
        return self.adapter()


class OneAliasApi(OfAdapter, ObjectApi[Alias]):
    """Returns the alias."""

    serializer_class = AliasSerializer

    def get_object(self) -> Alias:
        return alias_get(adapter=self.adapter(), name=self.kwargs["alias"])

    def row_to_lock(self, found: Alias) -> Adapter:
        return found.adapter


class AdaptersApi(generics.ListAPIView[Adapter]):
    permission_classes = (tenant_may(Permission.ADAPTERS_READ, Permission.ADAPTERS_WRITE),)
    serializer_class = AdapterSerializer
    filterset_class = AdapterFilter
    queryset = Adapter.objects.none()  # names the model for the schema
    parser_classes = (MultiPartParser, StrictJSONParser)
    is_called = staticmethod(_never)

    def get_queryset(self) -> QuerySet[Adapter]:
        deleted = self.request.query_params.get("deleted") == "true"
        return adapter_list(tenant=request_tenant(self.request), deleted=deleted)

    @idempotent(atomic=False)
    @extend_schema(request=AdapterInput, responses={201: VersionSerializer})
    def post(self, request: Request) -> Response:
        """Registers an adapter or its next version. Poll the version until it is ready or refused."""
        values = validated(AdapterInput, request.data)
        base_model = base_model_get(name=values["base_model"])
        return _register(request, values["name"], base_model, values, self.is_called)


class AdapterChecksApi(APIView):
    permission_classes = (tenant_may(Permission.ADAPTERS_READ, Permission.ADAPTERS_WRITE),)
    is_called = staticmethod(_never)

    @extend_schema(request=AdapterCheckInput, responses=AdapterCheckSerializer)
    def post(self, request: Request) -> Response:
        """Checks name, base model, quota and lineage before files are uploaded; registers nothing.

        Returns the version that the bare name refers to.
        """
        tenant, values = request_tenant(request), validated(AdapterCheckInput, request.data)
        default, takes_over = adapter_check(
            tenant=tenant,
            name=values["name"],
            base_model=base_model_get(name=values["base_model"]),
            size_bytes=values["size_bytes"],
            lineage={field: values[field] for field in FIELDS if field in values},
            make_default=_default_choice(self.is_called, tenant, values["name"], values["make_default"]),
        )
        return Response({"default_version": default, "becomes_default": takes_over})


class AdapterApi(OneAdapterApi, RetrieveApi[Adapter]):
    permission_classes = (tenant_may(Permission.ADAPTERS_READ, Permission.ADAPTERS_WRITE),)

    @conditional()
    @extend_schema(request=AdapterChange, responses=AdapterSerializer)
    def patch(self, request: Request, name: str) -> Response:
        """Replaces labels or notes."""
        adapter_update(adapter=self.get_object(), **validated(AdapterChange, request.data))
        return Response(AdapterSerializer(self.get_object()).data)

    @conditional()
    def delete(self, request: Request, name: str) -> Response:
        """Deletes the adapter with all versions and aliases; it can be restored within the grace time."""
        adapter_delete(adapter=self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)


class PinApi(OneAdapterApi):
    permission_classes = (tenant_may(Permission.ADAPTERS_READ, Permission.ADAPTERS_WRITE),)

    @conditional()
    @extend_schema(request=PinInput, responses=AdapterSerializer)
    def put(self, request: Request, name: str) -> Response:
        """Sets the version that the bare name refers to."""
        adapter_pin(adapter=self.adapter(), number=validated(PinInput, request.data)["version"])
        return Response(AdapterSerializer(self.get_object()).data)


class VersionsApi(OfAdapter, generics.ListAPIView[AdapterVersion]):
    permission_classes = (tenant_may(Permission.ADAPTERS_READ, Permission.ADAPTERS_WRITE),)
    serializer_class = VersionSerializer
    filterset_class = VersionFilter
    queryset = AdapterVersion.objects.none()
    parser_classes = (MultiPartParser, StrictJSONParser)
    is_called = staticmethod(_never)

    def get_queryset(self) -> QuerySet[AdapterVersion]:
        return version_list(adapter=self.adapter())

    @idempotent(atomic=False)
    @extend_schema(request=VersionInput, responses={201: VersionSerializer})
    def post(self, request: Request, name: str) -> Response:
        """Registers the next version of an existing adapter."""
        base_model, values = self.adapter().base_model, validated(VersionInput, request.data)
        return _register(request, name, base_model, values, self.is_called)


class VersionApi(OfAdapter, RetrieveApi[AdapterVersion]):
    permission_classes = (tenant_may(Permission.ADAPTERS_READ, Permission.ADAPTERS_WRITE),)
    serializer_class = VersionDetailSerializer

    def get_object(self) -> AdapterVersion:
        return version_get(adapter=self.adapter(), number=self.kwargs["number"])

    @conditional()
    @extend_schema(request=VersionChange)
    def patch(self, request: Request, name: str, number: int) -> Response:
        """Replaces notes or lineage."""
        changed = version_update(version=self.get_object(), **validated(VersionChange, request.data))
        return Response(VersionDetailSerializer(changed).data)

    @conditional()
    def delete(self, request: Request, name: str, number: int) -> Response:
        """Deletes a version that no name refers to; it can be restored within the grace time."""
        version_delete(version=self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)


class AliasesApi(OfAdapter, generics.ListAPIView[Alias]):
    permission_classes = (tenant_may(Permission.ADAPTERS_READ, Permission.ADAPTERS_WRITE),)
    serializer_class = AliasSerializer
    filterset_class = AliasFilter
    queryset = Alias.objects.none()

    def get_queryset(self) -> QuerySet[Alias]:
        return alias_list(adapter=self.adapter())


class AliasApi(OneAliasApi, RetrieveApi[Alias]):
    permission_classes = (tenant_may(Permission.ADAPTERS_READ, Permission.ADAPTERS_WRITE),)

    @conditional()
    @extend_schema(request=AliasInput, responses=AliasSerializer)
    def put(self, request: Request, name: str, alias: str) -> Response:
        """Points the alias at a ready version, or splits it among several; creates it if needed.

        Takes effect within a second.
        """
        adapter, values = self.adapter(), validated(AliasInput, request.data)
        reason = values["reason"]
        if "version" in values:
            alias_move(adapter=adapter, name=alias, number=values["version"], reason=reason)
        else:
            arms = [(arm["version"], arm["percent"]) for arm in values["arms"]]
            alias_split(adapter=adapter, name=alias, arms=arms, reason=reason)
        return Response(AliasSerializer(self.get_object()).data)

    @conditional()
    def delete(self, request: Request, name: str, alias: str) -> Response:
        """Removes the alias; calls by it then fail as an unknown model."""
        alias_remove(alias=self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)


class FallbackApi(OneAdapterApi):
    permission_classes = (tenant_may(Permission.ADAPTERS_READ, Permission.ADAPTERS_WRITE),)

    @conditional()
    @extend_schema(request=FallbackInput, responses=AdapterSerializer)
    def put(self, request: Request, name: str) -> Response:
        """Sets the fallback models, which are served if no copy can serve the bare name's version."""
        adapter, values = self.adapter(), validated(FallbackInput, request.data)
        fallback_set(adapter=adapter, alias=None, models=values["models"])
        return Response(AdapterSerializer(self.get_object()).data)


class AliasFallbackApi(OneAliasApi):
    permission_classes = (tenant_may(Permission.ADAPTERS_READ, Permission.ADAPTERS_WRITE),)

    @conditional()
    @extend_schema(request=FallbackInput, responses=AliasSerializer)
    def put(self, request: Request, name: str, alias: str) -> Response:
        """Sets the fallback models, which are served if no copy can serve the alias's version."""
        row, values = self.get_object(), validated(FallbackInput, request.data)
        fallback_set(adapter=row.adapter, alias=row, models=values["models"])
        return Response(AliasSerializer(self.get_object()).data)
