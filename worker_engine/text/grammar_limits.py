"""Size limits checked before a grammar is compiled, where the grammar library has none of its own.

Measured with llguidance 1.9: a number's `multipleOf` becomes an automaton of as many states (9,973: 26 ms;
99,991: 400 ms; 99,999,989: no end within 18 s). Nested counted repetitions of 10^9 take 0.7 s and 180 MB
before the library gives up. All other cases tried end by the library's own limits within 0.4 s.
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
"""Limit of one count; the library expands it only as far as the text has come."""
MAX_NESTED_REPETITIONS: Final = 10_000
"""Limit of the product of nested counts. 316 times 316 takes 40 MB and 100 times 100 takes 5, immediately."""
MAX_NAMES: Final = 3_000
MAX_INTEGER: Final = 1 << 53
"""Limit for const and enum: the grammar library holds numbers as floats, which round larger integers."""
_COUNT: Final = re.compile(r"\{\s*(\d+)\s*(?:,\s*(\d*)\s*)?\}")
"""The grammar library allows blanks within a count."""
_GROUP_OPTIONS: Final = re.compile(r"\(\?(?!:|P?<\w)")
"""A group with flags or lookaround. `(?x)` would change the meaning of everything after it."""


def check_size(text: str) -> None:
    """Raise InvalidRequest when a grammar's text is too long."""
    if len(text) > MAX_TEXT:
        raise InvalidRequest(f"the grammar is larger than {MAX_TEXT} characters")


def check_schema(text: str) -> int:
    """Return the number of names in its objects. Raises InvalidRequest when a JSON schema is too large to
    compile.
    """
    # Import it here: the engine alone, as the GPU report runs it, needs no JSON library.
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
    """Raise InvalidRequest when the values, or nested ones, hold an integer beyond MAX_INTEGER."""
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
    """Return the least common multiple of the `multipleOf` values, in their smallest decimal step."""
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
    """Return the largest product of nested counts.

    Raises:
        InvalidRequest: a regular expression has flags or nests counted repetitions too far.
    """
    check_size(pattern)
    # Per open group: the largest product of counts within it. The count that follows a group multiplies it.
    inside, last, pos = [1], 1, 0
    while pos < len(pattern):
        char = pattern[pos]
        count = _COUNT.match(pattern, pos) if char == "{" else None
        if count is not None:
            most = MAX_NESTED_REPETITIONS if last > 1 else MAX_REPETITIONS
            last *= max(_number(count[1]), _number(count[2] or ""), 1)
            if last > most:
                nested = " by counts within one another" if most < MAX_REPETITIONS else ""
                raise InvalidRequest(f"a regular expression repeats something over {most} times{nested}")
            inside[-1] = max(inside[-1], last)
            pos = count.end()
            continue
        # A count after one of these multiplies the same product.
        if char in "?*+":
            pos += 1
            continue
        if char == "(":
            if _GROUP_OPTIONS.match(pattern, pos):
                raise InvalidRequest(
                    f"a regular expression may not have {pattern[pos : pos + 4]!r}: flags such as (?i) and "
                    "lookaround are not supported"
                )
            inside.append(1)
        last = 1
        if char == ")" and len(inside) > 1:
            last = inside.pop()
            inside[-1] = max(inside[-1], last)
        pos = _class_end(pattern, pos) if char == "[" else pos + (2 if char == "\\" else 1)
    return max(inside)


def _number(digits: str) -> int:
    """Return the number, or one beyond every limit if it is too long to parse quickly."""
    digits = digits.lstrip("0")
    return int(digits or "0") if len(digits) < 10 else 10**9


def _class_end(pattern: str, pos: int) -> int:
    """Return the position after the character class that begins at `pos`, including nested ones."""
    depth = 0
    while pos < len(pattern):
        char = pattern[pos]
        pos += 2 if char == "\\" else 1
        if char == "[":
            depth += 1
            pos += pattern[pos : pos + 1] == "^"
            pos += pattern[pos : pos + 1] == "]"
        elif char == "]":
            depth -= 1
            if not depth:
                break
    return pos
