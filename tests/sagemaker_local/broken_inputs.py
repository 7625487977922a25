"""Inputs from botocore's shapes: a valid one, and for each constraint one that breaks only it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sagemaker_local.aws import shapes

_CANDIDATES = (
    "abc",
    "s3://bucket/key",
    "s3://b/key",
    "arn:aws:iam::000000000000:role/abc",
    "arn:aws:sagemaker:eu-central-1:000000000000:model/abc",
    "arn:aws:sagemaker:eu-central-1:000000000000:training-plan/abc",
    "arn:aws:sagemaker:eu-central-1:000000000000:mlflow-app/abc",
    "arn:aws:sagemaker:eu-central-1:000000000000:model-package/abc",
    "arn:aws:sns:eu-central-1:000000000000:abc",
    "mig-1g.5gb",
    "text/csv",
    "/metrics",
    "abcdefghijklmnopqrstuvwxyz",
)
_UNLIKE = ("!", "", "ä b\n", "\x00", "\x85")
"""Of these one breaks any pattern that anything breaks."""


@dataclass(frozen=True)
class Broken:
    """`value` breaks the constraint in `said`, at `path`; `code` is the expected error."""

    path: str
    said: str
    value: Any
    code: str = "ValidationException"


def right(shape: Any) -> Any:
    """The least value that the shape allows."""
    match shape.type_name:
        case "structure":
            names = list(shape.required_members)
            if getattr(shape, "is_tagged_union", False) and not names:
                names = list(shape.members)[:1]
            return {name: right(shape.members[name]) for name in names}
        case "list":
            return [right(shape.member)] * int(shape.metadata.get("min", 0))
        case "map":
            return {f"{right(shape.key)}{n}": right(shape.value) for n in range(shape.metadata.get("min", 0))}
        case "string":
            return _text(shape)
        case "boolean":
            return True
        case "timestamp":
            return 1.7e9
    low, high = shape.metadata.get("min", 0), shape.metadata.get("max")
    return max(low, 1) if high is None or high >= 1 else low


def broken(shape: Any, path: str = "", seen: frozenset[str] = frozenset()) -> Iterator[Broken]:
    """Each constraint of `shape` and of what it holds, once; a shape that holds itself is entered once."""
    yield Broken(path, "must be", _of_another_type(shape), "SerializationException")
    inner = seen | {shape.name}
    match shape.type_name:
        case "structure":
            yield from _structure(shape, path, inner)
        case "list":
            yield from _list(shape, path, inner)
        case "map":
            yield from _map(shape, path, inner)
        case "string":
            yield from _string(shape, path)
        case "integer" | "long" | "float" | "double":
            yield from _number(shape, path)


def _list(shape: Any, path: str, seen: frozenset[str]) -> Iterator[Broken]:
    yield from _sizes(shape, path, [right(shape.member)])
    fill = [right(shape.member)] * (int(shape.metadata.get("min", 1)) - 1)
    for item in broken(shape.member, f"{path}[]", seen) if shape.member.name not in seen else ():
        yield Broken(item.path, item.said, [item.value, *fill], item.code)


def _map(shape: Any, path: str, seen: frozenset[str]) -> Iterator[Broken]:
    for item in broken(shape.value, f"{path}{{}}", seen):
        yield Broken(item.path, item.said, {"abc": item.value}, item.code)
    for item in broken(shape.key, f"{path} key", seen):
        if isinstance(item.value, str):
            yield Broken(item.path, item.said, {item.value: right(shape.value)}, item.code)
    if (high := shape.metadata.get("max")) is not None:
        many = {f"k{number}": right(shape.value) for number in range(high + 1)}
        yield Broken(path, f"length less than or equal to {high}", many)


def _string(shape: Any, path: str) -> Iterator[Broken]:
    yield from _sizes(shape, path, "a")
    if shape.enum:
        yield Broken(path, "enum value set", "no-such-value")
    elif (unlike := _mismatching_text(shape)) is not None:
        yield Broken(path, "regular expression pattern", unlike)


def _number(shape: Any, path: str) -> Iterator[Broken]:
    low, high = shape.metadata.get("min"), shape.metadata.get("max")
    if low is not None:
        yield Broken(path, f"value greater than or equal to {low}", low - 1)
    if high is not None:
        yield Broken(path, f"value less than or equal to {high}", high + 1)


def _of_another_type(shape: Any) -> Any:
    return {"a": 1} if shape.type_name in ("string", "boolean", "list", "timestamp") else "text"


def _structure(shape: Any, path: str, seen: frozenset[str]) -> Iterator[Broken]:
    base = right(shape)
    union = getattr(shape, "is_tagged_union", False)
    yield Broken(path, "Unknown members", {**base, "NoSuchMember": 1}, "SerializationException")
    for name in shape.required_members:
        without = {key: value for key, value in base.items() if key != name}
        yield Broken(f"{path}.{name}", "must not be null", without)
    for name, member in shape.members.items():
        if member.name in seen:
            continue
        for item in broken(member, f"{path}.{name}", seen):
            value = {name: item.value} if union else {**base, name: item.value}
            yield Broken(item.path, item.said, value, item.code)


def _sizes(shape: Any, path: str, unit: Any) -> Iterator[Broken]:
    low, high = shape.metadata.get("min"), shape.metadata.get("max")
    if high is not None:
        yield Broken(path, f"length less than or equal to {high}", unit * (high + 1))
    if low:
        yield Broken(path, f"length greater than or equal to {low}", unit * (low - 1))


def _text(shape: Any) -> str:
    if shape.enum:
        return str(shape.enum[0])
    low, high = shape.metadata.get("min", 0), shape.metadata.get("max", 1 << 20)
    for text in _CANDIDATES:
        if low <= len(text) <= high and _fits(shape, text):
            return text
    raise AssertionError(f"no candidate fits {shape.name}: {shape.metadata}")


def _mismatching_text(shape: Any) -> str | None:
    if "pattern" not in shape.metadata:
        return None
    return next((text for text in _UNLIKE if not _fits(shape, text)), None)


def _fits(shape: Any, text: str) -> bool:
    pattern = shape.metadata.get("pattern")
    return pattern is None or re.fullmatch(shapes.pattern(pattern), text) is not None
