"""Validates values by botocore's shapes: type, members, required, min, max, pattern, enum, union.

botocore's client checks only types, required members and minima; the services check the rest, as here.
"""

from __future__ import annotations

import base64
import binascii
import datetime
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from sagemaker_local.aws import shapes
from sagemaker_local.aws_errors import SerializationException, ValidationException


def check(shape: Any, value: Any) -> dict[str, Any]:
    """Return the members of `value`, without nulls, and timestamps as seconds since 1970.

    Args:
        shape: botocore's structure; None for an operation without one.

    Raises:
        SerializationException: a value has another type, or a member is unknown.
        ValidationException: lists every violated constraint, in the services' own words.
    """
    if shape is None:
        if value:
            raise SerializationException(f"Unknown members: {', '.join(value)}")
        return {}
    parsed: dict[str, Any] = _structure(shape, value, "")
    if problems := list(violations(shape, parsed, "")):
        many = "errors" if len(problems) > 1 else "error"
        raise ValidationException(f"{len(problems)} validation {many} detected: {'; '.join(problems)}")
    return parsed


def _parse(shape: Any, value: Any, path: str) -> Any:
    return _PARSERS[shape.type_name](shape, value, path)


def _structure(shape: Any, value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong_type("an object", path)
    if unknown := set(value) - set(shape.members):
        where = f" in '{path}'" if path else ""
        raise SerializationException(f"Unknown members{where}: {', '.join(sorted(unknown))}")
    return {
        name: _parse(shape.members[name], item, _below(path, name))
        for name, item in value.items()
        if item is not None
    }


def _list(shape: Any, value: Any, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong_type("a list", path)
    return [_parse(shape.member, item, f"{path}.{place}.member") for place, item in enumerate(value, 1)]


def _map(shape: Any, value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong_type("an object", path)
    return {
        _parse(shape.key, name, path): _parse(shape.value, item, f"{path}.{name}.member")
        for name, item in value.items()
    }


def _timestamp(_: Any, value: Any, path: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    try:
        return datetime.datetime.fromisoformat(value).timestamp()
    except (TypeError, ValueError):
        raise _wrong_type("a timestamp", path) from None


def _blob(_: Any, value: Any, path: str) -> str:
    try:
        base64.b64decode(value, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise _wrong_type("a blob in base64", path) from None
    return str(value)


def _scalar(kinds: tuple[type, ...], name: str) -> Callable[[Any, Any, str], Any]:
    def parse(_: Any, value: Any, path: str) -> Any:
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise _wrong_type(name, path)
        return value

    return parse


_PARSERS: Final[Mapping[str, Callable[[Any, Any, str], Any]]] = {
    "structure": _structure,
    "list": _list,
    "map": _map,
    "timestamp": _timestamp,
    "blob": _blob,
    "string": _scalar((str,), "a string"),
    "boolean": _scalar((bool,), "a boolean"),
    "integer": _scalar((int,), "an integer"),
    "long": _scalar((int,), "an integer"),
    "float": _scalar((int, float), "a number"),
    "double": _scalar((int, float), "a number"),
}


def violations(shape: Any, value: Any, path: str) -> Iterator[str]:
    """Yield the violated constraints at `path` and below, in the services' own words."""
    shown = f"Value '{str(value)[:100]}' at '{path}' failed to satisfy constraint: Member must"
    yield from (f"{shown} {reason}" for reason in _broken(shape, value))
    if shape.type_name == "structure":
        for name in shape.required_members:
            if name not in value:
                where = _below(path, name)
                yield f"Value null at '{where}' failed to satisfy constraint: Member must not be null"
        if getattr(shape, "is_tagged_union", False) and len(value) != 1:
            yield f"{shown} have exactly one of {', '.join(shape.members)}"
        for name, item in value.items():
            yield from violations(shape.members[name], item, _below(path, name))
    elif shape.type_name == "list":
        for place, item in enumerate(value, 1):
            yield from violations(shape.member, item, f"{path}.{place}.member")
    elif shape.type_name == "map":
        for name, item in value.items():
            yield from violations(shape.key, name, path)
            yield from violations(shape.value, item, f"{path}.{name}.member")


def _broken(shape: Any, value: Any) -> Iterator[str]:
    low, high = shape.metadata.get("min"), shape.metadata.get("max")
    kind, size = ("length", len(value)) if isinstance(value, str | list | dict) else ("value", value)
    if high is not None and size > high:
        yield f"have {kind} less than or equal to {high}"
    if low is not None and size < low:
        yield f"have {kind} greater than or equal to {low}"
    if isinstance(value, str):
        text = shape.metadata.get("pattern")
        if text is not None and shapes.pattern(text).fullmatch(value) is None:
            yield f"satisfy regular expression pattern: {text}"
        if shape.enum and value not in shape.enum:
            yield f"satisfy enum value set: [{', '.join(shape.enum)}]"


def _below(path: str, member: str) -> str:
    """Return a member's path; the services write names in lower camel case."""
    name = member[0].lower() + member[1:]
    return f"{path}.{name}" if path else name


def _wrong_type(kind: str, path: str) -> SerializationException:
    return SerializationException(f"'{path}' must be {kind}" if path else f"The body must be {kind}")
