"""Views of one object with an ETag and conditional requests (RFC 9110, section 13)."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, TypeVar, cast

from django.db import models, transaction
from django.utils.http import parse_etags
from rest_framework import generics, status
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.errors import InvalidInputError, NotFoundError
from controlplane.platform.http.errors import PreconditionFailed, PreconditionRequired
from controlplane.platform.row_lock import row_lock

M = TypeVar("M", bound=models.Model)
Handler = TypeVar("Handler", bound=Callable[..., Response])


class ObjectApi(generics.GenericAPIView[M]):
    """A view of one object: `get_object` finds it, `serializer_class` renders it.

    `etag_ignores` names fields that change by themselves (when a key was last used) and so are no part of
    the ETag.
    """

    pagination_class = None
    filter_backends = ()
    etag_ignores: ClassVar[frozenset[str]] = frozenset()

    def get_object(self) -> M:
        """Return the object. Raises NotFoundError."""
        raise NotImplementedError(f"{type(self).__name__} must implement get_object")

    def row_to_lock(self, found: M) -> models.Model:
        """Return the row to lock for changes of `found`; a parent's where `found` may be unsaved."""
        return found

    def etag(self, shown: Mapping[str, Any]) -> str:
        """Return the ETag of a state from its serialized form."""
        fields = {name: value for name, value in shown.items() if name not in self.etag_ignores}
        return f'"{hashlib.sha256(JSONRenderer().render(fields)).hexdigest()[:32]}"'

    def locked_etag(self) -> str:
        """Lock the object until the transaction ends and return its current ETag.

        Raises NotFoundError.
        """
        row_lock(self.row_to_lock(self.get_object()))
        return self.etag(self.get_serializer(self.get_object()).data)


class Conditions:
    """A request's `If-Match` and `If-None-Match`."""

    def __init__(self, request: Request) -> None:
        self.match = _tags(request, "If-Match")
        self.none_match = _tags(request, "If-None-Match")

    def __bool__(self) -> bool:
        return self.match is not None or self.none_match is not None

    def check(self, view: ObjectApi[Any]) -> None:
        """Check the conditions, within the transaction of the change.

        Raises:
            PreconditionFailed: the current state does not match them.
            NotFoundError: there is no object, but `If-Match` demands one.
        """
        try:
            current = view.locked_etag()
        except NotFoundError:
            if self.match is not None:
                raise
            return
        if self.match is not None and not _named(self.match, current):
            raise PreconditionFailed()
        if self.none_match is not None and _named(self.none_match, current):
            raise PreconditionFailed("The object already exists in a state excluded by If-None-Match.")


def conditional(*, demanded: bool = False) -> Callable[[Handler], Handler]:
    """Make a handler of an ObjectApi check conditional headers and return the object's ETag.

    A GET answers 304 if the client has the current state. A change locks the object's row from the check to
    its commit, so one of two changes with the same `If-Match` is refused.

    Args:
        demanded: refuse a change without a condition (428); for changes that replace others' values.
    """

    def decorate(handler: Handler) -> Handler:
        @functools.wraps(handler)
        def checked(view: ObjectApi[Any], request: Request, *args: Any, **kwargs: Any) -> Response:
            conditions = Conditions(request)
            if request.method in ("GET", "HEAD"):
                return _conditional_get(view, conditions, handler(view, request, *args, **kwargs))
            if not conditions:
                if demanded and view.get_object():
                    raise PreconditionRequired()
                return _tagged(view, handler(view, request, *args, **kwargs))
            with transaction.atomic():
                conditions.check(view)
                return _tagged(view, handler(view, request, *args, **kwargs))

        checked.conditional = True  # type: ignore[attr-defined]
        checked.condition_demanded = demanded  # type: ignore[attr-defined]
        return cast(Handler, checked)

    return decorate


class RetrieveApi(ObjectApi[M]):
    """Returns the object."""  # as the schema describes subclasses that say nothing themselves

    @conditional()
    def get(self, request: Request, **kwargs: Any) -> Response:
        return Response(self.get_serializer(self.get_object()).data)


def _conditional_get(view: ObjectApi[Any], conditions: Conditions, response: Response) -> Response:
    response = _tagged(view, response)
    if conditions.none_match is not None and _named(conditions.none_match, response["ETag"]):
        return Response(status=status.HTTP_304_NOT_MODIFIED, headers={"ETag": response["ETag"]})
    return response


def _tagged(view: ObjectApi[Any], response: Response) -> Response:
    if response.data is not None:
        response["ETag"] = view.etag(response.data)
    return response


_ANY: Final = "*"


def _named(tags: set[str], current: str) -> bool:
    return _ANY in tags or current in tags


def _tags(request: Request, header: str) -> set[str] | None:
    text = request.headers.get(header)
    if text is None:
        return None
    # Compression marks a response's tag as weak; it names the same state.
    tags = {tag.removeprefix("W/") for tag in parse_etags(text)}
    if not tags:
        raise InvalidInputError(f'{header} must be a quoted "<etag>", a list of them, or *', field=header)
    return tags
