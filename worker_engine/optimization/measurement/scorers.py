"""Whether an answer is right, by what the order says is right."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from worker_engine.optimization.measurement.comparison_order import Quality, Scoring
from worker_engine.optimization.progress import Code, JobError
from worker_engine.optimization.prompt_lines import PromptLine
from worker_engine.optimization.spec_fields import SpecError

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


def _exact(line: PromptLine, answer: str) -> float:
    if line.expected is None:
        raise JobError(
            Code.BAD_DATA, f"line {line.number} has no expected, which the scorer exact compares with"
        )
    return float(answer.strip() == line.expected.strip())


def _by_schema(schema: Any) -> Scorer:
    # Imported late: only orders with a schema need it.
    import jsonschema

    kind = jsonschema.validators.validator_for(schema)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise SpecError(f"quality.scorer.schema is no JSON schema: {error.message}") from error
    validator = kind(schema)

    def score(line: PromptLine, answer: str) -> float:
        try:
            return float(validator.is_valid(json.loads(answer)))
        except (ValueError, RecursionError):
            return 0.0

    return score
