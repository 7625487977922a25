"""REST of base models: tenants read, staff register."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import generics, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.catalog.models import BaseModel
from controlplane.catalog.selectors import base_model_get, base_model_list
from controlplane.catalog.services import base_model_register
from controlplane.tenants.permissions import StaffOrTenantReads


class BaseModelSerializer(serializers.ModelSerializer[BaseModel]):
    class Meta:
        model = BaseModel
        fields = ("name", "architecture", "max_model_len", "dtype", "max_lora_rank", "created_at")


class BaseModelInput(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=63)
    source = serializers.CharField(  # type: ignore[assignment]  # a field of ours, not DRF's attribute
        max_length=500, help_text="Absolute folder with config.json and safetensors."
    )
    served_name = serializers.CharField(
        max_length=200, required=False, help_text="What the copies call it; the name when left out."
    )


class BaseModelsApi(generics.ListAPIView[BaseModel]):
    permission_classes = (StaffOrTenantReads,)
    serializer_class = BaseModelSerializer

    def get_queryset(self) -> QuerySet[BaseModel]:
        return base_model_list()

    @extend_schema(request=BaseModelInput, responses={201: BaseModelSerializer})
    def post(self, request: Request) -> Response:
        """Registers a checkpoint folder (staff)."""
        data = BaseModelInput(data=request.data)
        data.is_valid(raise_exception=True)
        base_model = base_model_register(**data.validated_data)
        return Response(BaseModelSerializer(base_model).data, status.HTTP_201_CREATED)


class BaseModelApi(generics.GenericAPIView[BaseModel]):
    permission_classes = (StaffOrTenantReads,)
    serializer_class = BaseModelSerializer

    def get(self, request: Request, name: str) -> Response:
        return Response(BaseModelSerializer(base_model_get(name=name)).data)
