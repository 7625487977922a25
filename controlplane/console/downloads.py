"""Downloads: files of a page's data, and of documents in one of their formats."""

from __future__ import annotations

from functools import wraps
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from controlplane.billing.documents.document import AnyDocument
from controlplane.billing.documents.formats import CONTENT_TYPES, document_download
from controlplane.console.pages import View
from controlplane.errors import (
    ConflictError,
    ControlPlaneError,
    InvalidInputError,
    NotFoundError,
    UnavailableError,
)

_STATUSES: Final = ((InvalidInputError, 400), (ConflictError, 409), (UnavailableError, 503))


def download(view: View) -> View:
    """Answer a refused download with the reason as plain text, since it has no page of its own."""

    @wraps(view)
    def wrapper(*args: Any, **kwargs: Any) -> HttpResponseBase:
        try:
            return view(*args, **kwargs)
        except ControlPlaneError as error:
            status = next((status for kind, status in _STATUSES if isinstance(error, kind)), None)
            if status is None:
                raise
            return HttpResponse(str(error), status=status, content_type="text/plain; charset=utf-8")

    return wrapper


@download
def document_file(request: HttpRequest, document: AnyDocument, form: str) -> HttpResponseBase:
    """Download a document in one of its formats. Raises NotFoundError for any other."""
    for known in CONTENT_TYPES:
        if known == form:
            return document_download(request, document, known)
    raise NotFoundError(f"documents have no form {form!r}")
