"""Adds conditional headers, idempotency keys and throttling to the OpenAPI schema."""

from __future__ import annotations

from typing import Any, Final

from drf_spectacular.utils import Direction, OpenApiParameter
from drf_standardized_errors.openapi import AutoSchema

from controlplane.platform.http.strict import StrictSerializer

_HEADER: Final = OpenApiParameter.HEADER
_IF_MATCH: Final = "ETag of the state to change, or *; 412 if the current state differs."


class ApiSchema(AutoSchema):
    """Reads a handler's attributes set by `conditional` and `idempotent`."""

    def get_override_parameters(self) -> list[Any]:
        parameters = [*super().get_override_parameters()]
        if self._is("conditional"):
            parameters += self._conditions()
        if self._is("idempotent"):
            text = "1 to 255 visible ASCII characters; a repeated key within 24 h returns the first response."
            parameters.append(OpenApiParameter("Idempotency-Key", str, _HEADER, description=text))
        return parameters

    def _conditions(self) -> list[OpenApiParameter]:
        told = OpenApiParameter(
            "ETag", str, _HEADER, response=[200, 201], description="ETag of the returned state."
        )
        if self.method == "GET":
            text = "ETags that the client holds; 304 if the current state matches one."
            return [told, OpenApiParameter("If-None-Match", str, _HEADER, description=text)]
        demanded = self._is("condition_demanded")
        given = OpenApiParameter("If-Match", str, _HEADER, required=demanded, description=_IF_MATCH)
        return [given] if self.method == "DELETE" else [told, given]

    def _should_add_error_response(self, responses: dict[str, Any], status_code: str) -> bool:
        changes = self._is("conditional") and self.method != "GET"
        if status_code == "400":
            return status_code not in responses  # of conditions, keys, pages and filters too
        if status_code == "412" and not changes:
            return False
        if status_code == "428" and not (changes and self._is("condition_demanded")):
            return False
        return bool(super()._should_add_error_response(responses, status_code))

    def _get_response_bodies(self, direction: Direction = "response") -> dict[str, Any]:
        bodies: dict[str, Any] = super()._get_response_bodies(direction)
        if direction == "response" and self.method == "GET" and self._is("conditional"):
            bodies["304"] = {"description": "The client holds the current state."}
        for status, answer in bodies.items():
            if status == "429":
                answer["headers"] = {
                    "Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}
                }
        return bodies

    def _get_error_response_examples(self) -> list[Any]:
        return []  # repeated at each operation, they would make nine tenths of the document

    def _map_basic_serializer(self, serializer: Any, direction: Direction) -> dict[str, Any]:
        schema: dict[str, Any] = super()._map_basic_serializer(serializer, direction)  # type: ignore[no-untyped-call]
        if direction == "request" and isinstance(serializer, StrictSerializer):
            schema["additionalProperties"] = False
        return schema

    def _is(self, mark: str) -> bool:
        return bool(getattr(getattr(self.view, self.method.lower(), None), mark, False))
