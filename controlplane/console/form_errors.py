"""Refusals of forms: texts beside the fields, or a message on the next page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Self

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from rest_framework.serializers import Serializer
from rest_framework.settings import api_settings

from controlplane.console.seen import Shown, seen_again, seen_tag
from controlplane.errors import (
    ConflictError,
    ControlPlaneError,
    ForbiddenError,
    InvalidInputError,
    NotFoundError,
)

_FORM: Final = "form"
"""The key of errors that no field caused."""


class InvalidFieldsError(InvalidInputError):
    """Fields of a form are malformed. `texts` has the REST API's error of each field."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        named = (text if field == _FORM else f"{field}: {text}" for field, text in texts.items())
        super().__init__(" ".join(named), field=next(iter(texts)))
        self.texts = texts


def posted(request: HttpRequest, kind: type[Serializer[Any]]) -> dict[str, str]:
    """Return the form's texts for the fields of an input serializer, without surrounding blanks."""
    return {name: request.POST.get(name, "").strip() for name in kind().get_fields()}


def parsed(kind: type[Serializer[Any]], values: Mapping[str, Any]) -> dict[str, Any]:
    """Parse a form's values by an input serializer of the REST API; empty texts are left out.

    Raises InvalidFieldsError.
    """
    data = kind(data={name: value for name, value in values.items() if value != ""})
    if data.is_valid():
        return dict(data.validated_data)
    found = list(_texts(data.errors, ""))
    raise InvalidFieldsError({field or _FORM: text for field, text in reversed(found)})


def _texts(detail: Any, field: str) -> Iterator[tuple[str, str]]:
    """Yield each text with the path of its field, such as `load.speeds`; an item has its list's path."""
    match detail:
        case dict():
            for key, value in detail.items():
                is_part = isinstance(key, str) and key != api_settings.NON_FIELD_ERRORS_KEY
                yield from _texts(value, f"{field}.{key}".strip(".") if is_part else field)
        case list():
            for value in detail:
                yield from _texts(value, field)
        case _:
            yield field, str(detail)


class FormErrors(dict[str, str]):
    """Errors of a form by field, which a `with` block collects from the exception that it raises.

    For example:

        with errors:
            project_create(...)
            return redirect(...)
        return errors.render("console/projects.html", context)

    Attributes:
        text: the refusal as one text.
        seen: the tag of the state that the form was filled in from, for the form's hidden input.
    """

    def __init__(
        self, request: HttpRequest, *, conflict_field: str = _FORM, shown: Shown | None = None
    ) -> None:
        """Catch refusals of `request`.

        Args:
            conflict_field: the field under which a conflict stands.
            shown: the state that the form replaces, if it is protected by `seen.unchanged`.
        """
        super().__init__()
        self._request, self._conflict_field = request, conflict_field
        self._is_guarded = shown is not None
        self.text, self.seen = "", "" if shown is None else seen_tag(shown)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, ControlPlaneError):
            return False
        self.text, self.seen = str(error), seen_again(self._request, error)
        self.update(self.by_field(error))
        return True

    def by_field(self, error: ControlPlaneError) -> Mapping[str, str]:
        """Return a refusal's texts by field, in the words of the REST API."""
        match error:
            case InvalidFieldsError():
                return error.texts
            case InvalidInputError():
                return {error.field or self._conflict_field: str(error)}
            case ConflictError() | NotFoundError() | ForbiddenError():
                return {self._conflict_field: str(error)}
            case _:
                return {_FORM: str(error)}

    def render(self, template: str, context: Mapping[str, Any], *, status: int = 422) -> HttpResponse:
        """Render a page with the form's errors, with `status` if there are any."""
        shown = {"errors": self, **context, **({"seen": self.seen} if self._is_guarded else {})}
        return render(self._request, template, shown, status=status if self else 200)


class RefusalMessage:
    """Shows the refusal of a `with` block as a message on the next page.

    A change that the member's role does not permit is the whole page's refusal instead.
    """

    def __init__(self, request: HttpRequest) -> None:
        self._request = request

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, ControlPlaneError) or isinstance(error, ForbiddenError):
            return False
        messages.error(self._request, str(error))
        return True
