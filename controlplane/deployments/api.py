"""REST of copies (staff)."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import generics, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.catalog.selectors import base_model_get
from controlplane.deployments.models import Copy
from controlplane.deployments.selectors import copy_get, copy_list
from controlplane.deployments.services import copy_register, copy_remove
from controlplane.tenants.permissions import Staff


class CopySerializer(serializers.ModelSerializer[Copy]):
    base_model = serializers.CharField(source="base_model.name")

    class Meta:
        model = Copy
        fields = ("id", "base_model", "kind", "url", "created_at")


class CopyInput(serializers.Serializer[Any]):
    base_model = serializers.CharField(max_length=63)
    kind = serializers.ChoiceField(choices=Copy.Kind.choices)
    url = serializers.CharField(max_length=500, help_text="Base URL without /v1.")


class CopiesApi(generics.ListAPIView[Copy]):
    permission_classes = (Staff,)
    serializer_class = CopySerializer

    def get_queryset(self) -> QuerySet[Copy]:
        return copy_list()

    @extend_schema(request=CopyInput, responses={201: CopySerializer})
    def post(self, request: Request) -> Response:
        """Puts a server into the route table; the same URL again returns its copy."""
        data = CopyInput(data=request.data)
        data.is_valid(raise_exception=True)
        base_model = base_model_get(name=data.validated_data["base_model"])
        copy = copy_register(
            base_model=base_model, kind=data.validated_data["kind"], url=data.validated_data["url"]
        )
        return Response(CopySerializer(copy).data, status.HTTP_201_CREATED)


class CopyApi(generics.GenericAPIView[Copy]):
    permission_classes = (Staff,)
    serializer_class = CopySerializer

    def get(self, request: Request, copy_id: str) -> Response:
        return Response(CopySerializer(copy_get(copy_id=copy_id)).data)

    @extend_schema(responses={204: None})
    def delete(self, request: Request, copy_id: str) -> Response:
        copy_remove(copy=copy_get(copy_id=copy_id))
        return Response(status=status.HTTP_204_NO_CONTENT)
