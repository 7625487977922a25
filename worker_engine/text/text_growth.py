"""Upper bounds on the results of operations, methods and filters of templates, before they are computed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any, Final

MAX_BITS: Final = 4096
"""Most bits of a whole number."""
_PERCENT: Final = re.compile(r"%(?:\([^)]*\))?[-#0 +]*(\d+|\*)?(?:\.(\d+|\*))?")
_BRACES: Final = re.compile(r"\{[^{}:]*(?::([^{}]*(?:\{[^{}]*\}[^{}]*)*))?\}")
_NUMBER: Final = re.compile(r"\d+")


class NumberTooLargeError(ValueError):
    """A product or a power has more than MAX_BITS bits."""


def operation_length(operator: str, left: Any, right: Any) -> int:
    """Return the length of the sequence that an operation makes at most; 0 for numbers.

    Raises:
        NumberTooLargeError: the operation makes too large a number.
    """
    if operator == "%":
        return _format_length(left, _values(right)) if isinstance(left, str | bytes) else 0
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() + right.bit_length() if operator == "*" else 0
        bits = left.bit_length() * right if operator == "**" else bits
        if bits > MAX_BITS:
            raise NumberTooLargeError(f"it makes a number of more than {MAX_BITS} bits")
        return 0
    lengths = [len(item) for item in (left, right) if isinstance(item, Sized)]
    if operator == "+":
        return sum(lengths) if len(lengths) == 2 else 0
    times = [item for item in (left, right) if isinstance(item, int)]
    return lengths[0] * int(times[0]) if operator == "*" and lengths and times else 0


def method_length(text: str | bytes, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Return the length of the text that a text's method makes at most; 0 for methods that lengthen none."""
    if name in ("ljust", "rjust", "center", "zfill"):
        return len(text) + _largest(args)
    if name == "expandtabs":
        return len(text) * max(8, _largest((*args, *kwargs.values())))
    if name == "replace" and len(args) > 1 and isinstance(args[1], Sized):
        return len(text) + text.count(args[0]) * len(args[1])
    if name == "join" and args:
        return _joined_length(len(text), args[0])
    if name in ("format", "format_map"):
        values = [*args, *kwargs.values()]
        return _format_length(text, [*_values(args[0]), *values] if name == "format_map" else values)
    return 0


def filter_length(name: str, value: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Return the length of what a filter makes at most; 0 for filters that lengthen nothing.

    Args:
        value: that the filter is applied to.
    """
    given = (*args, *kwargs.values())
    texts = [len(item) for item in given if isinstance(item, str)]
    if name in ("center", "batch", "slice"):
        return _length(value) + _largest(given)
    if name == "indent":
        return _length(value) + (str(value).count("\n") + 1) * max([4, _largest(given), *texts])
    if name == "wordwrap":
        return (_length(value) + 1) * (1 + max(texts, default=1))
    if name == "replace" and len(args) > 1:
        return method_length(str(value), "replace", [str(item) for item in args[:2]], {})
    if name == "join":
        return _joined_length(max(texts, default=0), value)
    return _format_length(str(value), given) if name == "format" else 0


GROWING_FILTERS: Final = ("center", "batch", "slice", "indent", "wordwrap", "replace", "join", "format")


def _format_length(form: str | bytes, values: Iterable[Any]) -> int:
    text, given = form if isinstance(form, str) else form.decode("latin-1"), list(values)
    longest = max((_length(item) for item in given), default=0)
    braces, percents = _BRACES.findall(text), _PERCENT.findall(text)
    widths = [int(number[:12]) for spec in braces for number in _NUMBER.findall(spec)]
    widths += [int(number[:12]) for pair in percents for number in pair if number.isdecimal()]
    stated: int = sum(spec.count("{") for spec in braces) + sum(pair.count("*") for pair in percents)
    fields = text.count("{") + text.count("%")
    return len(text) + sum(widths) + stated * _largest(given) + fields * longest


def _joined_length(separator: int, items: Any) -> int:
    if not isinstance(items, Sized) or not isinstance(items, Iterable):
        return 0
    return sum(_length(item) + separator for item in items)


def _values(right: Any) -> list[Any]:
    if isinstance(right, Mapping):
        return list(right.values())
    return list(right) if isinstance(right, tuple | list) else [right]


def _length(item: Any) -> int:
    return len(item) if isinstance(item, Sized) else 0


def _largest(items: Iterable[Any]) -> int:
    return max((abs(item) for item in items if isinstance(item, int)), default=0)
