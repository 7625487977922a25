"""The control plane's errors, turned into HTTP in `http.errors` and nowhere else.

ControlPlaneError
├── SettingsError           configuration is wrong; the process does not start
├── InvalidInputError       400  what the caller sent is wrong; a retry does not help
├── NotFoundError           404  no such thing for this tenant
├── ConflictError           409  it contradicts what is there already
├── UnavailableError        503  something we depend on is away; a retry helps
└── RefusedError                 an artifact failed validation; kept with the adapter version
"""

from __future__ import annotations


class ControlPlaneError(Exception):
    """Root of the tree; the text tells the caller what to do."""


class SettingsError(ControlPlaneError):
    """A GRAFTWORK_* variable is unknown or malformed."""


class InvalidInputError(ControlPlaneError):
    """What the caller sent is wrong. `field` names the part of the input."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class NotFoundError(ControlPlaneError):
    """There is no such object for this tenant (another tenant's reads the same)."""


class ConflictError(ControlPlaneError):
    """The change contradicts the present state."""


class UnavailableError(ControlPlaneError):
    """A dependency does not answer; the same call may succeed later."""


class RefusedError(ControlPlaneError):
    """An adapter's files failed validation; the text names the tensor or field and what was expected."""
