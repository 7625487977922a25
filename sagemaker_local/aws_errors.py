"""Errors of the JSON services, and their format in each protocol.

ApiError                       400
├── SerializationException          a type is wrong or a member unknown
├── ValidationException             an input breaks its shape; in SageMaker also: there is no such resource
├── UnknownOperationException
├── AccessDenied                    signature, token or credentials; the code says which
├── ThrottlingException
├── ResourceInUse, ResourceNotFound, ResourceLimitExceeded
├── ObjectNotFoundException         Application Auto Scaling's
├── LimitExceededException          Application Auto Scaling's
├── InternalFailure            500
├── ServiceUnavailable         503
└── Injected                        a fault's own code and status
"""

from __future__ import annotations

import json
from typing import Final
from xml.sax.saxutils import escape


class ApiError(Exception):
    """Base of the tree; `code` is the name that clients know."""

    status: int = 400

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.message, self.code = message, code or type(self).__name__


class SerializationException(ApiError):
    pass


class ValidationException(ApiError):
    pass


class UnknownOperationException(ApiError):
    pass


class AccessDenied(ApiError):
    pass


class ThrottlingException(ApiError):
    pass


class ResourceInUse(ApiError):
    pass


class ResourceNotFound(ApiError):
    pass


class ResourceLimitExceeded(ApiError):
    pass


class ObjectNotFoundException(ApiError):
    pass


class LimitExceededException(ApiError):
    pass


class InternalFailure(ApiError):
    status = 500


class ServiceUnavailable(ApiError):
    status = 503


class Injected(ApiError):
    def __init__(self, message: str, code: str, status: int) -> None:
        super().__init__(message, code)
        self.status = status


_S3_CODES: Final = {
    "InvalidSignatureException": "SignatureDoesNotMatch",
    "UnrecognizedClientException": "InvalidAccessKeyId",
    "MissingAuthenticationTokenException": "AccessDenied",
}
_QUERY_CODES: Final = {
    "InvalidSignatureException": "SignatureDoesNotMatch",
    "UnrecognizedClientException": "InvalidClientTokenId",
    "MissingAuthenticationTokenException": "MissingAuthenticationToken",
    "IncompleteSignatureException": "IncompleteSignature",
}


def as_json(error: ApiError) -> bytes:
    """Format an error for AWS JSON 1.0 and 1.1."""
    return json.dumps({"__type": error.code, "message": error.message}).encode()


def as_s3(error: ApiError) -> bytes:
    """Format an error as S3's XML."""
    code = _S3_CODES.get(error.code, error.code)
    text = f"<Error><Code>{escape(code)}</Code><Message>{escape(error.message)}</Message></Error>"
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'.encode()


def as_query(error: ApiError) -> bytes:
    """Format an error as the query protocol's XML (IAM, STS)."""
    code = _QUERY_CODES.get(error.code, error.code)
    text = f"<Type>Sender</Type><Code>{escape(code)}</Code><Message>{escape(error.message)}</Message>"
    return f"<ErrorResponse><Error>{text}</Error><RequestId>local</RequestId></ErrorResponse>".encode()


def as_cbor(error: ApiError) -> bytes:
    """Format an error for Smithy's RPC v2 in CBOR: a map of two texts (RFC 8949, major types 5 and 3)."""
    pairs = (("__type", error.code), ("message", error.message))
    return b"\xa2" + b"".join(_cbor_text(text) for pair in pairs for text in pair)


def _cbor_text(text: str) -> bytes:
    data = text.encode()
    return b"\x79" + len(data[:65535]).to_bytes(2, "big") + data[:65535]
