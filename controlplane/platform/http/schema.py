"""How conditions, idempotency keys and throttling stand in the OpenAPI schema."""

from __future__ import annotations

from typing import Any, Final

from drf_spectacular.utils import Direction, OpenApiParameter
from drf_standardized_errors.openapi import AutoSchema

from controlplane.platform.http.strict import StrictSerializer

_HEADER: Final = OpenApiParameter.HEADER
_IF_MATCH: Final = "The ETag of the state that this change is meant for, or *; 412 when another is in force."


class ApiSchema(AutoSchema):
    """Reads from a handler what `conditional` and `idempotent` made of it."""

    def get_override_parameters(self) -> list[Any]:
        parameters = [*super().get_override_parameters()]
        if self._is("conditional"):
            parameters += self._conditions()
        if self._is("idempotent"):
            text = (
                "1 to 255 visible ASCII characters: sent again within 24 h it gets the answer of the first."
            )
            parameters.append(OpenApiParameter("Idempotency-Key", str, _HEADER, description=text))
        return parameters

    def _conditions(self) -> list[OpenApiParameter]:
        told = OpenApiParameter("ETag", str, _HEADER, response=[200, 201], description="Of the state shown.")
        if self.method == "GET":
            text = "ETags that the caller has already: 304 when the state is one of them."
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
            bodies["304"] = {"description": "The caller has this state already."}
        for status, answer in bodies.items():
            if status == "429":
                answer["headers"] = {
                    "Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}
                }
        return bodies

    def _get_error_response_examples(self) -> list[Any]:
        return []  # each of them at each operation would be nine tenths of the document

    def _map_basic_serializer(self, serializer: Any, direction: Direction) -> dict[str, Any]:
        schema: dict[str, Any] = super()._map_basic_serializer(serializer, direction)  # type: ignore[no-untyped-call]
        if direction == "request" and isinstance(serializer, StrictSerializer):
            schema["additionalProperties"] = False
        return schema

    def _is(self, mark: str) -> bool:
        return bool(getattr(getattr(self.view, self.method.lower(), None), mark, False))
