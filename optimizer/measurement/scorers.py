"""Whether an answer is right, by what the order says is right."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from contracts.recipes.progress import Code, JobError
from contracts.recipes.spec_fields import SpecError
from optimizer.measurement.comparison_order import Quality, Scoring
from optimizer.prompt_lines import PromptLine

Scorer = Callable[[PromptLine, str], float]
"""1.0 for a right answer, 0.0 for another."""


def scorer(quality: Quality) -> Scorer | None:
    """None where the order asks for none.

    Raises:
        SpecError: a pattern or schema that is none.
    """
    if quality.scoring is Scoring.EXACT:
        return _exact
    if quality.scoring is Scoring.REGEX:
        try:
            pattern = re.compile(quality.pattern)
        except re.error as error:
            raise SpecError(f"quality.scorer.pattern is no regular expression: {error}") from error
        return lambda line, answer: float(pattern.search(answer) is not None)
    return _by_schema(quality.schema) if quality.scoring is Scoring.JSON_SCHEMA else None


def demand_expected(lines: Sequence[PromptLine]) -> None:
    """Raises JobError, bad_data, with the number of a line that the scorer exact could not judge."""
    for line in lines:
        if line.expected is None:
            raise JobError(
                Code.BAD_DATA, f"line {line.number} has no expected, which the scorer exact compares with"
            )


def _exact(line: PromptLine, answer: str) -> float:
    return float(answer.strip() == (line.expected or "").strip())


def _by_schema(schema: Any) -> Scorer:
    # Imported late: only orders with a schema need it.
    import jsonschema
    from referencing import Registry, Resource
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    kind = jsonschema.validators.validator_for(schema)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise SpecError(f"quality.scorer.schema is no JSON schema: {error.message}") from error
    # A registry of its own, with nothing to fetch: by default a reference may name any address or file.
    resource = Resource.from_contents(schema, default_specification=DRAFT202012)
    registry: Registry[Any] = Registry().with_resource("", resource)
    resolver = registry.resolver()
    for reference in _references(schema):
        try:
            resolver.lookup(reference)
        except Unresolvable:
            raise SpecError(
                f"quality.scorer.schema refers to {reference!r}, which is not in it: write it out there"
            ) from None
    validator = kind(schema, registry=registry)

    def score(line: PromptLine, answer: str) -> float:
        try:
            return float(validator.is_valid(json.loads(answer)))
        except (ValueError, RecursionError):
            return 0.0

    return score


def _references(value: Any) -> Iterator[str]:
    """Every `$ref` and `$dynamicRef` in a schema, wherever it stands."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for item in inside:
        yield from _references(item)
    if isinstance(value, dict):
        named = (value.get("$ref"), value.get("$dynamicRef"))
        yield from (reference for reference in named if isinstance(reference, str))
