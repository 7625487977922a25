"""What is refused before a grammar is compiled: sizes that the grammar library does not bound by itself.

Measured with llguidance 1.9: a number's `multipleOf` becomes an automaton of as many states (9,973: 26 ms;
99,991: 400 ms; 99,999,989: no end within 18 s); nested counted repetitions of 10^9 take 0.7 s and 180 MB
before they are given up. All else that was tried ends by the library's own limits within 0.4 s.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any, Final

from worker_engine.errors import InvalidRequest

MAX_TEXT: Final = 1 << 18
MAX_MULTIPLE: Final = 10_000
MAX_REPETITIONS: Final = 100_000
"""Of one count: what it repeats is looked at as far as the text has come."""
MAX_NESTED_REPETITIONS: Final = 10_000
"""Product of counts within one another. 316 times 316 keeps 40 MB and 100 times 100 keeps 5, at once."""
MAX_NAMES: Final = 3_000
MAX_INTEGER: Final = 1 << 53
"""Of const and enum: the grammar library holds numbers as floats, which round integers beyond."""
_COUNT: Final = re.compile(r"\{\s*(\d+)\s*(?:,\s*(\d*)\s*)?\}")
"""The grammar library takes blanks within a count."""
_GROUP_OPTIONS: Final = re.compile(r"\(\?(?!:|P?<\w)")
"""A group that begins with flags or looks around. `(?x)` changes what all that follows means."""


def check_size(text: str) -> None:
    """Raises InvalidRequest when a grammar's text is too long."""
    if len(text) > MAX_TEXT:
        raise InvalidRequest(f"the grammar is larger than {MAX_TEXT} characters")


def check_schema(text: str) -> int:
    """Names in its objects. Raises InvalidRequest when a JSON schema holds something too large to compile."""
    # At the first schema: the engine alone, as the GPU report runs it, needs no JSON library.
    import orjson

    check_size(text)
    multiple, names = Fraction(1), 0
    try:
        open_nodes: list[Any] = [orjson.loads(text)]
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the schema is not JSON: {error}") from error
    while open_nodes:
        node = open_nodes.pop()
        if isinstance(node, dict):
            multiple = _common_multiple(multiple, node.get("multipleOf"))
            _demand_exact([node.get("const"), node.get("enum")])
            patterns = node.get("patternProperties")
            for pattern in (node.get("pattern"), *(patterns if isinstance(patterns, dict) else ())):
                if isinstance(pattern, str):
                    check_pattern(pattern)
            names += _count_names(node)
            if names > MAX_NAMES:
                raise InvalidRequest(
                    f"the schema's objects have more than {MAX_NAMES} names in properties and required"
                )
            open_nodes += node.values()
        elif isinstance(node, list):
            open_nodes += node
    return names


def _demand_exact(values: list[Any]) -> None:
    """Raises InvalidRequest when the values, or those within them, hold an integer beyond MAX_INTEGER."""
    while values:
        value = values.pop()
        if isinstance(value, dict):
            values += value.values()
        elif isinstance(value, list):
            values += value
        elif isinstance(value, int) and abs(value) > MAX_INTEGER:
            raise InvalidRequest(
                f"const and enum may hold integers up to {MAX_INTEGER}, got {value}: use a string instead"
            )


def _count_names(node: dict[str, Any]) -> int:
    properties, required = node.get("properties"), node.get("required")
    names = set(properties) if isinstance(properties, dict) else set()
    return len(names.union(filter(_is_text, required)) if isinstance(required, list) else names)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _common_multiple(known: Fraction, value: object) -> Fraction:
    """Least common multiple of the schema's `multipleOf`, counted in the smallest decimal step among them."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return known
    if value <= 0 or not math.isfinite(value):
        raise InvalidRequest(f"multipleOf must be above 0, got {value}")
    step = Fraction(str(value))
    common = Fraction(
        math.lcm(known.numerator, step.numerator), math.gcd(known.denominator, step.denominator)
    )
    states = common * math.lcm(known.denominator, step.denominator)
    if states > MAX_MULTIPLE:
        raise InvalidRequest(
            f"multipleOf {value} is too fine or too large: together with the schema's others it needs "
            f"{float(states):g} states, at most {MAX_MULTIPLE} are served"
        )
    return common


def check_pattern(pattern: str) -> int:
    """Return the largest product of counts within one another.

    Raises:
        InvalidRequest: a regular expression has flags or nests counted repetitions too far.
    """
    check_size(pattern)
    # Per open group: the largest product of counts within it. The count that follows a group multiplies it.
    inside, last, at = [1], 1, 0
    while at < len(pattern):
        char = pattern[at]
        count = _COUNT.match(pattern, at) if char == "{" else None
        if count is not None:
            most = MAX_NESTED_REPETITIONS if last > 1 else MAX_REPETITIONS
            last *= max(_number(count[1]), _number(count[2] or ""), 1)
            if last > most:
                nested = " by counts within one another" if most < MAX_REPETITIONS else ""
                raise InvalidRequest(f"a regular expression repeats something over {most} times{nested}")
            inside[-1] = max(inside[-1], last)
            at = count.end()
            continue
        # A count behind one of these repeats what they repeat.
        if char in "?*+":
            at += 1
            continue
        if char == "(":
            if _GROUP_OPTIONS.match(pattern, at):
                raise InvalidRequest(
                    f"a regular expression may not have {pattern[at : at + 4]!r}: flags such as (?i) and "
                    "lookaround are not supported"
                )
            inside.append(1)
        last = 1
        if char == ")" and len(inside) > 1:
            last = inside.pop()
            inside[-1] = max(inside[-1], last)
        at = _class_end(pattern, at) if char == "[" else at + (2 if char == "\\" else 1)
    return max(inside)


def _number(digits: str) -> int:
    """The number, or one beyond every limit where it is so long that it would be slow to read."""
    digits = digits.lstrip("0")
    return int(digits or "0") if len(digits) < 10 else 10**9


def _class_end(pattern: str, at: int) -> int:
    """Just behind the character class that begins at `at`, and behind those nested in it."""
    depth = 0
    while at < len(pattern):
        char = pattern[at]
        at += 2 if char == "\\" else 1
        if char == "[":
            depth += 1
            at += pattern[at : at + 1] == "^"
            at += pattern[at : at + 1] == "]"
        elif char == "]":
            depth -= 1
            if not depth:
                break
    return at
