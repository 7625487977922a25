"""Exit statuses of the command line."""

from __future__ import annotations

from typing import Final

from graftwork.errors import (
    ApiError,
    AuthenticationError,
    ChangedError,
    ConfigurationError,
    ConflictError,
    GraftworkError,
    NotFoundError,
    PermissionDeniedError,
)

FAILED: Final = 1
"""Validation refused the adapter, or the server refused the request."""
USAGE: Final = 2
"""The command line itself is wrong, or nothing is configured."""
FORBIDDEN: Final = 3
"""The key is missing, wrong, or lacks the permission."""
ABSENT: Final = 4
"""The object does not exist."""
CONFLICT: Final = 5
"""The request conflicts with the current state, or someone else changed it."""
UNAVAILABLE: Final = 6
"""No answer, too many calls, or the server failed: try again."""


def status_of(error: GraftworkError) -> int:
    """Returns the exit status for `error`."""
    match error:
        case ConfigurationError():
            return USAGE
        case AuthenticationError() | PermissionDeniedError():
            return FORBIDDEN
        case NotFoundError():
            return ABSENT
        case ConflictError() | ChangedError():
            return CONFLICT
        case _ if error.retryable:
            return UNAVAILABLE
        case _:
            return FAILED


def advice(error: GraftworkError) -> str | None:
    """Returns a command that helps after `error`, if there is one."""
    if isinstance(error, AuthenticationError):
        return "graftwork login"
    if isinstance(error, ApiError) and error.code == "missing_scope":
        return "graftwork keys create <name> --scope inference --scope manage"
    return None
