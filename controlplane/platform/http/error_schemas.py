"""The OpenAPI schema of errors: one shape for all of them."""

from __future__ import annotations

from typing import Any

from drf_standardized_errors.openapi_serializers import ClientErrorEnum, ServerErrorEnum, ValidationErrorEnum
from rest_framework import serializers


class ErrorSerializer(serializers.Serializer[Any]):
    code = serializers.CharField(
        help_text="Machine-readable code, such as `invalid`, `not_found` or `in_progress`."
    )
    detail = serializers.CharField(help_text="Description of the problem and its solution.")
    attr = serializers.CharField(allow_null=True, help_text="Field, header or parameter at fault.")


class ErrorResponseSerializer(serializers.Serializer[Any]):
    type = serializers.ChoiceField(
        choices=[*ValidationErrorEnum.choices, *ClientErrorEnum.choices, *ServerErrorEnum.choices]
    )
    errors = ErrorSerializer(many=True)  # type: ignore[assignment]  # a field, not DRF's property
