"""Turns the control plane's error tree into standardized HTTP errors."""

from __future__ import annotations

from drf_standardized_errors.handler import ExceptionHandler
from rest_framework import exceptions, status

from controlplane.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    UnavailableError,
)


class Conflict(exceptions.APIException):
    """409: the change contradicts the present state."""

    status_code = status.HTTP_409_CONFLICT
    default_detail = "The change contradicts the present state."
    default_code = "conflict"


class Unavailable(exceptions.APIException):
    """503: a dependency does not answer; retry."""

    status_code = status.HTTP_503_SERVICE_UNAVAILABLE
    default_detail = "A service that this needs does not answer; try again."
    default_code = "unavailable"


class ErrorHandler(ExceptionHandler):
    """drf-standardized-errors' handler, which also knows `controlplane.errors`."""

    def convert_known_exceptions(self, exc: Exception) -> Exception:
        match exc:
            case InvalidInputError():
                text = str(exc)
                return exceptions.ValidationError({exc.field: [text]} if exc.field else [text])
            case NotFoundError():
                return exceptions.NotFound(str(exc))
            case ConflictError():
                return Conflict(str(exc))
            case UnavailableError():
                return Unavailable(str(exc))
            case _:
                known: Exception = super().convert_known_exceptions(exc)
                return known
