"""What the process's exit status says."""

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
"""Refused: by validation, or what was sent is not acceptable."""
USAGE: Final = 2
"""The command line itself is wrong, or nothing is configured."""
FORBIDDEN: Final = 3
"""No key, a wrong one, or one that may not do this."""
ABSENT: Final = 4
"""There is no such thing."""
CONFLICT: Final = 5
"""It contradicts what is there, or someone changed it meanwhile."""
UNAVAILABLE: Final = 6
"""No answer, too many calls, or the server failed: try again."""


def status_of(error: GraftworkError) -> int:
    """The exit status that tells of `error`."""
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
    """What to do about `error` at the command line, beyond what its text says."""
    if isinstance(error, AuthenticationError):
        return "graftwork login"
    if isinstance(error, ApiError) and error.code == "missing_scope":
        return "graftwork keys create <name> --scope inference --scope manage"
    return None
