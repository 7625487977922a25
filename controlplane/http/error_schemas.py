"""How the errors that are ours stand in the OpenAPI schema."""

from __future__ import annotations

from typing import Any

from drf_standardized_errors.openapi_serializers import ClientErrorEnum, ServerErrorEnum
from rest_framework import serializers


class Error409Serializer(serializers.Serializer[Any]):
    code = serializers.CharField(default="conflict")
    detail = serializers.CharField()
    attr = serializers.CharField(allow_null=True)


class ErrorResponse409Serializer(serializers.Serializer[Any]):
    type = serializers.ChoiceField(choices=ClientErrorEnum.choices)
    errors = Error409Serializer(many=True)  # type: ignore[assignment]  # a field, not DRF's property


class Error503Serializer(serializers.Serializer[Any]):
    code = serializers.CharField(default="unavailable")
    detail = serializers.CharField()
    attr = serializers.CharField(allow_null=True)


class ErrorResponse503Serializer(serializers.Serializer[Any]):
    type = serializers.ChoiceField(choices=ServerErrorEnum.choices)
    errors = Error503Serializer(many=True)  # type: ignore[assignment]  # a field, not DRF's property
