"""The control plane's errors, turned into HTTP in `http.errors` and nowhere else.

ControlPlaneError
├── InvalidInputError       400  what the caller sent is wrong; a retry does not help
│   ├── OutOfRangeError          a number is out of its bounds, which the error carries
│   ├── ChecksumError       460  bytes were damaged on their way; sending them again helps
│   └── OutgoingRefusedError     a URL that a tenant wrote leads where nothing of theirs may go
├── ForbiddenError          403  the caller's role does not permit it
├── NotFoundError           404  no such thing for this tenant
├── ConflictError           409  it contradicts what is there already
│   └── InProgressError     409  the same request is being worked on; ask again in a moment
├── UnavailableError        503  something we depend on is away; a retry helps
├── UnsealError                  a secret in the database cannot be opened with the keys that are set
└── RefusedError                 an artifact failed validation; kept with the adapter version
"""

from __future__ import annotations


class ControlPlaneError(Exception):
    """Root of the tree; the message says what the caller can do."""


class InvalidInputError(ControlPlaneError):
    """The caller's input is invalid. `field` names the part of the input."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class OutOfRangeError(InvalidInputError):
    """A number lies outside of `low` to `high`, both allowed and in the field's own unit."""

    def __init__(self, message: str, *, field: str, low: float, high: float) -> None:
        super().__init__(message, field=field)
        self.low, self.high = low, high


class ChecksumError(InvalidInputError):
    """The bytes received do not match their checksum; a retry helps."""


class OutgoingRefusedError(InvalidInputError):
    """A URL that a tenant wrote leads to an address that is not allowed."""


class ForbiddenError(ControlPlaneError):
    """The caller lacks a permission that the change needs; someone with another role may make it."""


class NotFoundError(ControlPlaneError):
    """There is no such object for this tenant (another tenant's reads the same)."""


class ConflictError(ControlPlaneError):
    """The change contradicts the present state."""


class InProgressError(ConflictError):
    """The same request is being worked on at this moment; a retry helps."""


class UnavailableError(ControlPlaneError):
    """A dependency does not answer; the same call may succeed later."""


class UnsealError(ControlPlaneError):
    """A sealed secret cannot be opened; who entered it has to enter it again."""


class RefusedError(ControlPlaneError):
    """An adapter's files failed validation; the text names the tensor or field and what was expected."""
