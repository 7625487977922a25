"""The error tree; `retryable` says whether the same call may succeed later.

GraftworkError
├── ConfigurationError         no URL or key, or a file that cannot be read
├── RefusedError               an adapter failed validation; the text names the tensor and what was expected
├── ConnectionFailedError      no answer came: the network, a timeout        retryable
└── ApiError                   the server said no
    ├── InvalidRequestError    400, 413, 415, 422
    ├── AuthenticationError    401
    ├── PermissionDeniedError  403
    ├── NotFoundError          404
    ├── ConflictError          409
    ├── ChangedError           412, 428  someone changed it: read again
    ├── RateLimitedError       429       retryable
    └── ServerError            5xx       retryable
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

import msgspec


class GraftworkError(Exception):
    """Root of the tree; the text says what to do."""

    retryable: ClassVar[bool] = False


class ConfigurationError(GraftworkError):
    """The address or key is missing, or an input file cannot be read."""


class RefusedError(GraftworkError):
    """The server validated an adapter version and refused it."""


class ConnectionFailedError(GraftworkError):
    """No answer came, after all attempts."""

    retryable = True


class Problem(msgspec.Struct, frozen=True):
    """One fault of a request. `attr` names the field, header or parameter."""

    code: str = "error"
    detail: str = ""
    attr: str | None = None


class ApiError(GraftworkError):
    """An answer of status 400 or above.

    Attributes:
        status: HTTP status.
        problems: the server's problems, at least one.
        retry_after: seconds to wait, if the server states them.
    """

    def __init__(self, status: int, problems: Sequence[Problem], retry_after: float | None = None) -> None:
        self.status, self.problems, self.retry_after = status, tuple(problems), retry_after
        super().__init__("; ".join(_text(problem) for problem in problems))

    @property
    def code(self) -> str:
        """The first problem's error code."""
        return self.problems[0].code


class InvalidRequestError(ApiError):
    """The request is invalid."""


class AuthenticationError(ApiError):
    """The key is missing, unknown, revoked or expired."""


class PermissionDeniedError(ApiError):
    """The key may not do this, or not from here."""


class NotFoundError(ApiError):
    """The object does not exist for this tenant."""


class ConflictError(ApiError):
    """The request conflicts with the current state."""


class ChangedError(ApiError):
    """The object changed since it was read: read it again."""


class RateLimitedError(ApiError):
    """Too many calls."""

    retryable = True


class ServerError(ApiError):
    """The server failed, or a service behind it is unavailable."""

    retryable = True


_BY_STATUS: Final[dict[int, type[ApiError]]] = {
    401: AuthenticationError,
    403: PermissionDeniedError,
    404: NotFoundError,
    409: ConflictError,
    412: ChangedError,
    428: ChangedError,
    429: RateLimitedError,
}


class _Body(msgspec.Struct):
    errors: list[Problem]


class _OpenAiBody(msgspec.Struct):
    class _Error(msgspec.Struct):
        message: str
        code: str | None = None
        param: str | None = None

    error: _Error


def api_error(status: int, body: bytes, retry_after: str | None) -> ApiError:
    """Builds the error of a response from the control plane or the gateway."""
    kind = _BY_STATUS.get(status, ServerError if status >= 500 else InvalidRequestError)
    seconds = float(retry_after) if retry_after and retry_after.replace(".", "", 1).isdigit() else None
    return kind(status, _problems(status, body), seconds)


def _problems(status: int, body: bytes) -> Sequence[Problem]:
    try:
        if found := msgspec.json.decode(body, type=_Body).errors:
            return found
    except msgspec.MsgspecError:
        pass
    try:
        error = msgspec.json.decode(body, type=_OpenAiBody).error
        return [Problem(error.code or "error", error.message, error.param)]
    except msgspec.MsgspecError:
        text = body[:200].decode("utf-8", "replace").strip()
        return [Problem("error", f"the server answered {status}" + (f": {text}" if text else ""))]


def _text(problem: Problem) -> str:
    return f"{problem.attr}: {problem.detail}" if problem.attr else problem.detail
