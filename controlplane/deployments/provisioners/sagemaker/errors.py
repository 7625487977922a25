"""Turn AWS's refusals and failures into sentences that say what to do.

The rows are in `advice`. A code and its message are looked up in `REFUSALS`, the reason of a failed resource
in `FAILURES`, and errors without an answer in `UNSENT`; the first match counts. The original text of AWS or
botocore follows the advice.
"""

from __future__ import annotations

import re
from typing import Final

from botocore.exceptions import BotoCoreError, ClientError

from controlplane.deployments.provisioners.base import ProvisioningError, ThrottledError
from controlplane.deployments.provisioners.sagemaker.advice import (
    FAILURES,
    REFUSALS,
    THROTTLED,
    UNKNOWN,
    UNSENT,
)

_THROTTLED: Final = frozenset(
    {
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "TooManyRequestsException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
    }
)
_ABSENT: Final = re.compile(r"could not find|does not exist|not found|cannot find", re.I)
_EXISTS: Final = re.compile(r"already exist", re.I)


def provisioning_error(error: Exception, *, operation: str, about: str) -> ProvisioningError:
    """Return botocore's `error` as a ProvisioningError.

    Args:
        operation: the call, such as `create_endpoint`.
        about: the resource's name.
    """
    code, message = _code_and_message(error)
    where = f" ({operation} {about}: {code or type(error).__name__}: {message[:600]})"
    if code in _THROTTLED:
        return ThrottledError(THROTTLED + where, code=code)
    for kinds, row in UNSENT:
        if isinstance(error, kinds):
            return ProvisioningError(
                row.advice + where, transient=row.transient, wait=row.wait, code=row.code
            )
    if isinstance(error, ClientError):
        for row in REFUSALS:
            if re.search(row.code, code) and re.search(row.message, message, re.I | re.S):
                return ProvisioningError(
                    row.advice + where, transient=row.transient, wait=row.wait, code=code
                )
    return ProvisioningError(UNKNOWN + where, code=code)


def failure_reason(text: str) -> str:
    """Return a failed resource's FailureReason, preceded by advice."""
    row = next(row for row in FAILURES if re.search(row.message, text, re.I | re.S))
    return f"{row.advice} (SageMaker: {text[:600] or 'no reason given'})"


def is_absent(error: object) -> bool:
    """Return True if the error says that the resource does not exist."""
    if not isinstance(error, ClientError):
        return False
    code, message = _code_and_message(error)
    if code in ("ResourceNotFound", "ResourceNotFoundException", "NoSuchKey", "404"):
        return True
    return code in ("ValidationException", "ValidationError") and _ABSENT.search(message) is not None


def is_there_already(error: object) -> bool:
    """Return True if a creation failed because the resource already exists."""
    if not isinstance(error, ClientError):
        return False
    code, message = _code_and_message(error)
    return code in ("ValidationException", "ResourceInUse", "ConflictException") and bool(
        _EXISTS.search(message)
    )


def _code_and_message(error: Exception) -> tuple[str, str]:
    """Return AWS's code and message."""
    if isinstance(error, ClientError):
        body = error.response.get("Error", {})
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", "")
        return str(body.get("Code") or status), str(body.get("Message") or error)
    return ("", str(error)) if isinstance(error, BotoCoreError) else ("", repr(error))
