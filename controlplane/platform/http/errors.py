"""Turns the control plane's error tree into standardized HTTP errors."""

from __future__ import annotations

from django.utils.log import log_response
from drf_standardized_errors.handler import ExceptionHandler
from rest_framework import exceptions, status
from rest_framework.response import Response

from controlplane.errors import (
    ChecksumError,
    ConflictError,
    ForbiddenError,
    InProgressError,
    InvalidInputError,
    NotFoundError,
    UnavailableError,
)


class Conflict(exceptions.APIException):
    """409: the change conflicts with the current state."""

    status_code = status.HTTP_409_CONFLICT
    default_detail = "The change conflicts with the current state."
    default_code = "conflict"


class InProgress(Conflict):
    """409 with Retry-After: the same request is being worked on."""

    default_code = "in_progress"
    wait = 1


class Unavailable(exceptions.APIException):
    """503: a dependency does not answer; retry."""

    status_code = status.HTTP_503_SERVICE_UNAVAILABLE
    default_detail = "A required service does not respond; try again."
    default_code = "unavailable"


class PreconditionFailed(exceptions.APIException):
    """412: the object does not match `If-Match`."""

    status_code = status.HTTP_412_PRECONDITION_FAILED
    default_detail = (
        "The object was changed meanwhile: read it again and repeat the change on its current state."
    )
    default_code = "precondition_failed"


class PreconditionRequired(exceptions.APIException):
    """428: a change that replaces the whole object requires a condition."""

    status_code = status.HTTP_428_PRECONDITION_REQUIRED
    default_detail = (
        "Send If-Match with the ETag of the state that you read, or If-Match: * to replace any state."
    )
    default_code = "precondition_required"


class ChecksumMismatch(exceptions.APIException):
    """460 (tus): the bytes do not match their checksum."""

    status_code = 460
    default_detail = "The bytes do not match their checksum: send them again."
    default_code = "checksum_mismatch"


class ErrorHandler(ExceptionHandler):
    """drf-standardized-errors' handler, which also knows `controlplane.errors`."""

    def report_exception(self, exc: exceptions.APIException, response: Response) -> None:
        """An unavailable dependency is not a defect of this program: log one line without a traceback."""
        request = self.context["request"]
        if request is None or not isinstance(exc, Unavailable):
            super().report_exception(exc, response)
            return
        sent = request._request
        log_response("%s: %s", exc.detail, sent.path, response=response, request=sent, level="warning")

    def convert_known_exceptions(self, exc: Exception) -> Exception:
        match exc:
            case ChecksumError():
                return ChecksumMismatch(str(exc))
            case InvalidInputError():
                text = str(exc)
                return exceptions.ValidationError({exc.field: [text]} if exc.field else [text])
            case ForbiddenError():
                return exceptions.PermissionDenied(str(exc))
            case NotFoundError():
                return exceptions.NotFound(str(exc))
            case InProgressError():
                return InProgress(str(exc))
            case ConflictError():
                return Conflict(str(exc))
            case UnavailableError():
                return Unavailable(str(exc))
            case OverflowError():  # a number of more than 64 bits in a path, which SQLite cannot look up
                return exceptions.NotFound("no object has such a large number")
            case _:
                known: Exception = super().convert_known_exceptions(exc)
                return known
