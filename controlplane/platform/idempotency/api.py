"""`Idempotency-Key`: a repeated creation happens once and gets the same response."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import timedelta
from typing import Any, Final, TypeVar, cast

from django.core.files.uploadedfile import UploadedFile
from django.db import transaction
from django.http import QueryDict
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.encoders import JSONEncoder
from rest_framework.views import APIView

from controlplane.errors import ConflictError, InvalidInputError
from controlplane.platform.http.throttling import caller
from controlplane.platform.idempotency.sealing import fingerprint
from controlplane.platform.idempotency.services import Answer, Claim, answer_keep, claimed

HEADER: Final = "Idempotency-Key"
_ACCEPTABLE: Final = re.compile(r"[\x21-\x7e]{1,255}")
_STORED_HEADERS: Final = ("ETag", "Location")
_LEASE: Final = timedelta(seconds=60)
_UPLOAD_LEASE: Final = timedelta(minutes=15)

Handler = TypeVar("Handler", bound=Callable[..., Response])


def idempotent(*, atomic: bool = True) -> Callable[[Handler], Handler]:
    """Make a handler support `Idempotency-Key`. A failed request frees the key.

    Args:
        atomic: run the handler and store its response in one transaction, so that both are saved or neither.
            Not for handlers that move files, since the transaction would hold database locks meanwhile. Those
            call `keep_with_change` in their own transaction, or make a change that is safe to repeat.
    """

    def decorate(handler: Handler) -> Handler:
        @functools.wraps(handler)
        def answered_once(view: APIView, request: Request, *args: Any, **kwargs: Any) -> Response:
            key = request.headers.get(HEADER)
            if key is None:
                return handler(view, request, *args, **kwargs)
            if _ACCEPTABLE.fullmatch(key) is None:
                raise InvalidInputError(f"{HEADER} must be 1 to 255 visible ASCII characters", field=HEADER)
            lease = _LEASE if atomic else _UPLOAD_LEASE
            identity = fingerprint(_parts(request))
            with claimed(scope=caller(request), key=key, fingerprint=identity, lease=lease) as found:
                if isinstance(found, Answer):
                    headers = {**found.headers, "Idempotent-Replayed": "true"}
                    return Response(found.body, found.status, headers=headers)
                request.idempotency_claim = found  # type: ignore[attr-defined]
                with transaction.atomic() if atomic else nullcontext():
                    response = handler(view, request, *args, **kwargs)
                    if getattr(request, "idempotency_claim", None) is not None:
                        _keep(found, response, must=atomic)
                return response

        answered_once.idempotent = True  # type: ignore[attr-defined]
        return cast(Handler, answered_once)

    return decorate


def keep_with_change(request: Request, response: Response) -> None:
    """Store `response` in the transaction of its change; do nothing if the request has no key.

    For handlers that are not `atomic`, so that the change and its response are saved together or not at all.

    Raises:
        ConflictError: another request has taken over the key, so the change must be rolled back.
    """
    claim: Claim | None = getattr(request, "idempotency_claim", None)
    if claim is not None:
        _keep(claim, response, must=True)
        request.idempotency_claim = None  # type: ignore[attr-defined]


def _keep(claim: Claim, response: Response, *, must: bool) -> None:
    headers = {name: response[name] for name in _STORED_HEADERS if name in response}
    body = None if response.data is None else json.loads(json.dumps(response.data, cls=JSONEncoder))
    if not answer_keep(claim=claim, answer=Answer(response.status_code, body, headers)) and must:
        raise ConflictError("the request took so long that another one with its Idempotency-Key took over")


def _parts(request: Request) -> Iterator[bytes]:
    """Yield the request's identity: route, tenant and parsed body.

    The raw body of a form differs each time it is sent.
    """
    yield f"{request.method} {request.get_full_path()}".encode()
    # Set by the permission check; without the header it is the session's tenant, which any page may change.
    access = getattr(request, "tenant_access", None)
    yield request.headers.get("X-Graftwork-Tenant", "").encode()
    yield b"" if access is None else str(access.tenant.pk).encode()
    if not isinstance(request.data, QueryDict):
        yield json.dumps(request.data, sort_keys=True).encode()
        return
    for name, values in sorted(request.data.lists()):
        yield name.encode("utf-8", "surrogatepass")
        for value in values:
            yield (
                _file_digest(value)
                if isinstance(value, UploadedFile)
                else str(value).encode("utf-8", "replace")
            )


def _file_digest(file: UploadedFile[Any]) -> bytes:
    digest = hashlib.sha256((file.name or "").encode("utf-8", "replace"))
    for chunk in file.chunks():
        digest.update(chunk)
    file.seek(0)
    return digest.digest()
