"""Scores an answer by the order's criterion."""

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
"""Returns 1.0 for a correct answer, else 0.0."""


def scorer(quality: Quality) -> Scorer | None:
    """Return the order's scorer; None if it has none.

    Raises:
        SpecError: a malformed pattern or schema.
    """
    if quality.scoring is Scoring.EXACT:
        return _exact
    if quality.scoring is Scoring.REGEX:
        try:
            pattern = re.compile(quality.pattern)
        except re.error as error:
            raise SpecError(f"quality.scorer.pattern is not a regular expression: {error}") from error
        return lambda line, answer: float(pattern.search(answer) is not None)
    return _by_schema(quality.schema) if quality.scoring is Scoring.JSON_SCHEMA else None


def demand_expected(lines: Sequence[PromptLine]) -> None:
    """Raise JobError, bad_data, naming a line without `expected`, which the scorer `exact` needs."""
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
    # An empty registry: by default a reference could fetch any address or file.
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
    """Yield every `$ref` and `$dynamicRef` anywhere in a schema."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for item in inside:
        yield from _references(item)
    if isinstance(value, dict):
        named = (value.get("$ref"), value.get("$dynamicRef"))
        yield from (reference for reference in named if isinstance(reference, str))
