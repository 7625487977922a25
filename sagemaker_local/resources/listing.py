"""Filters, order and pagination of SageMaker's List operations."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from sagemaker_local.aws_errors import ValidationException
from sagemaker_local.resources.records import Record

DEFAULT_PAGE: Final = 10
_KEYS: Final[Mapping[str, Callable[[Record], Any]]] = {
    "Name": lambda item: item.name,
    "CreationTime": lambda item: item.created,
    "Status": lambda item: item.status,
}


def page(
    records: Iterable[Record], request: Mapping[str, Any], *, default_page: int = DEFAULT_PAGE
) -> tuple[list[Any], dict[str, str]]:
    """Return the matching records of a page, and NextToken if there are more.

    Raises:
        ValidationException: the token is invalid.
    """
    found = [item for item in records if _fits(item, request)]
    key = _KEYS[request.get("SortBy", "CreationTime")]
    descending = request.get("SortOrder", "Descending") == "Descending"
    found.sort(key=lambda item: (key(item), item.name), reverse=descending)
    return window(found, request, default_page)


def window(
    items: list[Any], request: Mapping[str, Any], default_page: int = DEFAULT_PAGE
) -> tuple[list[Any], dict[str, str]]:
    """Return a page of `items`, and NextToken if there are more. Raises ValidationException."""
    first, size = _offset(request.get("NextToken")), request.get("MaxResults", default_page)
    more = {"NextToken": _token(first + size)} if first + size < len(items) else {}
    return items[first : first + size], more


def _fits(item: Record, request: Mapping[str, Any]) -> bool:
    exact = {"StatusEquals": "status", "EndpointNameEquals": "endpoint", "VariantNameEquals": "variant"}
    return (
        request.get("NameContains", "").lower() in item.name.lower()
        and item.created < request.get("CreationTimeBefore", float("inf"))
        and item.created > request.get("CreationTimeAfter", 0.0)
        and item.modified < request.get("LastModifiedTimeBefore", float("inf"))
        and item.modified > request.get("LastModifiedTimeAfter", 0.0)
        and all(request[name] == getattr(item, field) for name, field in exact.items() if name in request)
    )


def _token(offset: int) -> str:
    return base64.urlsafe_b64encode(f"offset:{offset}".encode()).decode()


def _offset(token: str | None) -> int:
    if token is None:
        return 0
    try:
        kind, _, number = base64.urlsafe_b64decode(token).decode().partition(":")
        if kind == "offset":
            return int(number)
    except (ValueError, binascii.Error):
        pass
    raise ValidationException("Invalid pagination token given.")
