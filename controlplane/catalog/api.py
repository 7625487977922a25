"""REST of base models: tenants read, staff register."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import generics, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from contracts.capabilities.capability import BaseNeeds
from contracts.capabilities.engines import base_offers
from controlplane.catalog.digests import digest_request
from controlplane.catalog.filters import BaseModelFilter
from controlplane.catalog.models import BaseModel, CheckpointFile, Variant
from controlplane.catalog.refresh import base_model_refresh
from controlplane.catalog.selectors import (
    base_model_get,
    base_model_list,
    image_tokens,
    variant_get,
    variant_list,
)
from controlplane.catalog.services import (
    base_model_register,
    base_model_update,
    variant_create,
    variant_remove,
)
from controlplane.platform.http.object_api import RetrieveApi, conditional
from controlplane.platform.http.strict import StrictSerializer, validated
from controlplane.platform.idempotency.api import idempotent
from controlplane.tenants.permissions import Staff, tenant_reads_staff_writes, visible_tenant
from controlplane.tenants.roles import Permission


class VariantSerializer(serializers.ModelSerializer[Variant]):
    class Meta:
        model = Variant
        fields = ("name", "dtype", "quantization", "notes", "merged_adapter", "created_at")


class PlaceSerializer(serializers.Serializer[Any]):
    """Copy of the base model; usage events hold its ID as `endpoint`."""

    id = serializers.CharField()
    kind = serializers.CharField()


class BaseModelSerializer(serializers.ModelSerializer[BaseModel]):
    """A base model. Tenants do not see variants and copies into which another tenant's adapter is merged."""

    variants = serializers.SerializerMethodField()
    engines = serializers.SerializerMethodField(
        help_text="Engines that can serve it; empty: no backend can serve this yet."
    )
    reads_images = serializers.SerializerMethodField(
        help_text="True if it has a vision part; null if an older release registered it."
    )
    copies = serializers.SerializerMethodField(help_text="Copies of the base model.")
    dropped_parameters = serializers.ListField(
        child=serializers.CharField(), help_text="Parameters that gateways remove from requests."
    )

    class Meta:
        model = BaseModel
        fields = (
            "name",
            "architecture",
            "max_model_len",
            "dtype",
            "quantization",
            "reads_images",
            "engines",
            "licence",
            "max_lora_rank",
            "checkpoint_sha256",
            "dropped_parameters",
            "variants",
            "copies",
            "created_at",
        )

    @extend_schema_field(serializers.ListField(child=serializers.CharField()))
    def get_engines(self, base_model: BaseModel) -> list[str]:
        return base_offers(BaseNeeds(base_model.architecture, base_model.quantization))

    @extend_schema_field(serializers.BooleanField(allow_null=True))
    def get_reads_images(self, base_model: BaseModel) -> bool | None:
        rule = image_tokens(base_model)
        return None if rule is None else rule.reads_images

    @extend_schema_field(VariantSerializer(many=True))
    def get_variants(self, base_model: BaseModel) -> Any:
        return VariantSerializer(self._visible(base_model.variants.all()), many=True).data

    @extend_schema_field(PlaceSerializer(many=True))
    def get_copies(self, base_model: BaseModel) -> Any:
        return PlaceSerializer(self._visible(base_model.copies.all()), many=True).data

    def _visible(self, rows: Iterable[Any]) -> list[Any]:
        tenant = visible_tenant(self.context["request"])
        own = f"t_{tenant}."
        return [
            row
            for row in rows
            if tenant is None or not row.merged_adapter or row.merged_adapter.startswith(own)
        ]


class CheckpointFileSerializer(serializers.ModelSerializer[CheckpointFile]):
    class Meta:
        model = CheckpointFile
        fields = ("name", "size", "sha256")


class CheckpointSerializer(serializers.ModelSerializer[BaseModel]):
    files = CheckpointFileSerializer(many=True)

    class Meta:
        model = BaseModel
        fields = ("source", "digest_status", "digest_reason", "checkpoint_sha256", "files")


class BaseModelChange(StrictSerializer):
    """Changes of a base model. Omitted fields stay unchanged."""

    licence = serializers.CharField(max_length=100, required=False, allow_blank=True)
    max_lora_rank = serializers.IntegerField(min_value=1, max_value=512, required=False)
    dropped_parameters = serializers.ListField(
        child=serializers.CharField(max_length=64), max_length=100, required=False
    )
    hub_token = serializers.CharField(
        max_length=500,
        required=False,
        allow_blank=True,
        help_text="New Hugging Face token for the checkpoint's repository; '' removes it.",
    )


class VariantInput(StrictSerializer):
    name = serializers.CharField(max_length=63)
    dtype = serializers.CharField(max_length=20)
    quantization = serializers.CharField(max_length=40, default="", allow_blank=True)
    source = serializers.CharField(max_length=500)  # type: ignore[assignment]  # a field of ours
    notes = serializers.CharField(max_length=2000, default="", allow_blank=True)


class BaseModelInput(StrictSerializer):
    name = serializers.CharField(max_length=63)
    source = serializers.CharField(  # type: ignore[assignment]  # a field of ours, not DRF's attribute
        max_length=500,
        help_text="Folder with config.json and safetensors: absolute path, s3://... or "
        "hf://owner/name@revision.",
    )
    served_name = serializers.CharField(
        max_length=200, required=False, help_text="Model name on the copies; defaults to `name`."
    )

    licence = serializers.CharField(max_length=100, default="", allow_blank=True)
    hub_token = serializers.CharField(
        max_length=500,
        default="",
        allow_blank=True,
        help_text="Hugging Face token for a private or gated repository. Stored encrypted, never returned.",
    )


class BaseModelsApi(generics.ListAPIView[BaseModel]):
    permission_classes = (tenant_reads_staff_writes(Permission.MODELS_READ),)
    serializer_class = BaseModelSerializer
    filterset_class = BaseModelFilter

    def get_queryset(self) -> QuerySet[BaseModel]:
        return base_model_list()

    @idempotent(atomic=False)
    @extend_schema(request=BaseModelInput, responses={201: BaseModelSerializer})
    def post(self, request: Request) -> Response:
        """Registers a checkpoint (staff); a task computes its files' digests."""
        base_model = base_model_register(**validated(BaseModelInput, request.data))
        shown = BaseModelSerializer(base_model, context={"request": request})
        return Response(shown.data, status.HTTP_201_CREATED)


class BaseModelApi(RetrieveApi[BaseModel]):
    permission_classes = (tenant_reads_staff_writes(Permission.MODELS_READ),)
    serializer_class = BaseModelSerializer

    def get_object(self) -> BaseModel:
        return base_model_get(name=self.kwargs["name"])

    @conditional()
    @extend_schema(request=BaseModelChange)
    def patch(self, request: Request, name: str) -> Response:
        """Updates the license, the rank limit or the dropped parameters (staff)."""
        base_model_update(base_model=self.get_object(), **validated(BaseModelChange, request.data))
        return Response(BaseModelSerializer(self.get_object(), context={"request": request}).data)


class CheckpointApi(RetrieveApi[BaseModel]):
    """Returns the checkpoint's source and its files' digests."""

    permission_classes = (Staff,)
    serializer_class = CheckpointSerializer

    def get_object(self) -> BaseModel:
        return base_model_get(name=self.kwargs["name"])

    @idempotent()
    @extend_schema(request=None, responses=CheckpointSerializer)
    def post(self, request: Request, name: str) -> Response:
        """Recomputes the digests of all files."""
        digest_request(base_model=self.get_object())
        return Response(CheckpointSerializer(self.get_object()).data)


class BaseModelRefreshApi(APIView):
    permission_classes = (Staff,)

    @idempotent(atomic=False)
    @extend_schema(request=None, responses=BaseModelSerializer)
    def post(self, request: Request, name: str) -> Response:
        """Reads the checkpoint's configuration and headers again (staff).

        For models that an older release registered, which read less from them.
        """
        base_model_refresh(base_model=base_model_get(name=name))
        shown = BaseModelSerializer(base_model_get(name=name), context={"request": request})
        return Response(shown.data)


class VariantsApi(generics.ListAPIView[Variant]):
    permission_classes = (tenant_reads_staff_writes(Permission.MODELS_READ),)
    serializer_class = VariantSerializer
    queryset = Variant.objects.none()

    def get_queryset(self) -> QuerySet[Variant]:
        base_model = base_model_get(name=self.kwargs["name"])
        return variant_list(base_model=base_model, tenant=visible_tenant(self.request))

    @idempotent()
    @extend_schema(request=VariantInput, responses={201: VariantSerializer})
    def post(self, request: Request, name: str) -> Response:
        """Registers a variant of the weights (staff)."""
        base_model = base_model_get(name=name)
        variant = variant_create(base_model=base_model, **validated(VariantInput, request.data))
        return Response(VariantSerializer(variant).data, status.HTTP_201_CREATED)


class VariantApi(RetrieveApi[Variant]):
    permission_classes = (tenant_reads_staff_writes(Permission.MODELS_READ),)
    serializer_class = VariantSerializer

    def get_object(self) -> Variant:
        return variant_get(
            base_model=base_model_get(name=self.kwargs["name"]),
            name=self.kwargs["variant"],
            tenant=visible_tenant(self.request),
        )

    @conditional()
    def delete(self, request: Request, name: str, variant: str) -> Response:
        """Removes a variant (staff)."""
        variant_remove(variant=self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)
