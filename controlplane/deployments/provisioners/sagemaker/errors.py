"""What AWS refuses or reports, as a sentence that says what to do.

The rows are in `advice`: a code and its message are looked up in `REFUSALS`, the first row that fits; the
reason of a resource that failed in `FAILURES`; what never reached AWS in `UNSENT`. What AWS or botocore wrote
follows, so that nothing is hidden.
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
        "Throttling", "ThrottlingException", "ThrottledException", "TooManyRequestsException",
        "RequestLimitExceeded", "RequestThrottled", "RequestThrottledException", "SlowDown",
    }
)  # fmt: skip
_ABSENT: Final = re.compile(r"could not find|does not exist|not found|cannot find", re.I)
_EXISTS: Final = re.compile(r"already exist", re.I)


def provisioning_error(error: Exception, *, operation: str, about: str) -> ProvisioningError:
    """`error` of botocore's as ours.

    Args:
        operation: the call, such as `create_endpoint`.
        about: the resource's name.
    """
    code, message = _told(error)
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
    """A failed resource's own FailureReason, with what to do before it."""
    row = next(row for row in FAILURES if re.search(row.message, text, re.I | re.S))
    return f"{row.advice} (SageMaker: {text[:600] or 'no reason given'})"


def is_absent(error: object) -> bool:
    """Whether the resource is not there."""
    if not isinstance(error, ClientError):
        return False
    code, message = _told(error)
    if code in ("ResourceNotFound", "ResourceNotFoundException", "NoSuchKey", "404"):
        return True
    return code in ("ValidationException", "ValidationError") and _ABSENT.search(message) is not None


def is_there_already(error: object) -> bool:
    """Whether a creation found what it was to make."""
    if not isinstance(error, ClientError):
        return False
    code, message = _told(error)
    return code in ("ValidationException", "ResourceInUse", "ConflictException") and bool(
        _EXISTS.search(message)
    )


def _told(error: Exception) -> tuple[str, str]:
    """AWS's code and message."""
    if isinstance(error, ClientError):
        told = error.response.get("Error", {})
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", "")
        return str(told.get("Code") or status), str(told.get("Message") or error)
    return ("", str(error)) if isinstance(error, BotoCoreError) else ("", repr(error))
