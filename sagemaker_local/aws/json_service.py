"""AWS JSON 1.1: `X-Amz-Target` or the path names the operation, and botocore's shapes validate."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from sagemaker_local.aws import shapes, validation
from sagemaker_local.aws_errors import (
    ApiError,
    InternalFailure,
    SerializationException,
    UnknownOperationException,
)

log = logging.getLogger(__name__)

Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any] | None]]
Gate = Callable[[str], None]
"""Called with the operation's name before each operation; raises ApiError to refuse it."""
CONTENT_TYPE: Final = "application/x-amz-json-1.1"


class JsonService:
    """One service: `name` is botocore's, `operations` are the implemented ones."""

    def __init__(self, name: str, operations: Mapping[str, Handler], gate: Gate) -> None:
        self._model = shapes.service(name)
        if unknown := set(operations) - set(self._model.operation_names):
            raise ValueError(f"{name} has no operations {sorted(unknown)}")
        self.name, self.operations, self._gate = name, operations, gate
        self.signing_name = str(self._model.signing_name)
        # A service of REST JSON has no prefix: the path is its operation.
        self.target_prefix = str(self._model.metadata.get("targetPrefix", name))

    async def call(self, operation: str, body: bytes) -> bytes:
        """Run an operation. Raises ApiError."""
        handler = self.operations.get(operation)
        if handler is None:
            known = operation in self._model.operation_names
            why = "is not served by the local SageMaker" if known else "is no operation"
            raise UnknownOperationException(f"{self.name}: {operation} {why}")
        shape = self._model.operation_model(operation)
        parsed = validation.check(shape.input_shape, _decoded(body))
        self._gate(operation)
        try:
            answer = await handler(parsed) or {}
        except ApiError:
            raise
        except Exception as error:
            log.exception("%s failed", operation)
            raise InternalFailure(f"{operation} failed in the local SageMaker: {error!r}") from error
        try:
            validation.check(shape.output_shape, answer)
        except ApiError as error:
            log.exception("%s answers what its shape does not allow: %s", operation, answer)
            raise InternalFailure(f"{operation} broke its own shape: {error.message}") from error
        return json.dumps(answer).encode()


def _decoded(body: bytes) -> Any:
    try:
        return json.loads(body or b"{}")
    except ValueError:
        raise SerializationException("The body is no JSON") from None
