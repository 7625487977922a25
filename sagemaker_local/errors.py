"""Errors of SageMaker's runtime: rest-json, with the error's name in a header.

RuntimeRefusal
├── AccessRefused          403  signature, token or credentials
├── ValidationError        400
├── Throttled              429  ThrottlingException
├── ModelNotReady          429  ModelNotReadyException
├── ModelError             424  the container's own refusal, with its status and text
├── InternalFailure        500
├── ServiceUnavailable     503
└── InternalDependency     530  InternalDependencyException
"""

from __future__ import annotations

from typing import Any, ClassVar

from aiohttp import web


class RuntimeRefusal(Exception):
    """Base of the tree; `code` is the name that clients know."""

    status: ClassVar[int]
    code: str

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def body(self) -> dict[str, Any]:
        return {"Message": self.message}

    def response(self) -> web.Response:
        return web.json_response(self.body(), status=self.status, headers={"x-amzn-ErrorType": self.code})


class AccessRefused(RuntimeRefusal):
    status = 403

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code

    def body(self) -> dict[str, Any]:
        return {"message": self.message}


class ValidationError(RuntimeRefusal):
    status = 400
    code = "ValidationError"


class Throttled(RuntimeRefusal):
    status = 429
    code = "ThrottlingException"


class ModelNotReady(RuntimeRefusal):
    status = 429
    code = "ModelNotReadyException"


class ModelError(RuntimeRefusal):
    status = 424
    code = "ModelError"

    def __init__(self, original_status: int, original_message: str) -> None:
        side = "client" if 400 <= original_status < 500 else "server"
        super().__init__(
            f'Received {side} error ({original_status}) from primary with message "{original_message}".'
        )
        self._original = original_status, original_message

    def body(self) -> dict[str, Any]:
        status, message = self._original
        return {
            "LogStreamArn": "arn:aws:logs:local:000000000000:log-group:/aws/sagemaker/Endpoints/local",
            "Message": self.message,
            "OriginalMessage": message,
            "OriginalStatusCode": status,
        }


class InternalFailure(RuntimeRefusal):
    status = 500
    code = "InternalFailure"


class ServiceUnavailable(RuntimeRefusal):
    status = 503
    code = "ServiceUnavailable"


class InternalDependency(RuntimeRefusal):
    status = 530
    code = "InternalDependencyException"
