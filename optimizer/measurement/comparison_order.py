"""The JSON order of `compare`."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from contracts.recipes.bundled_prompts import BUNDLED, BundledName, BundledPrompts
from contracts.recipes.spec_fields import SpecError, SpecFields
from optimizer.measurement.prices import Price
from optimizer.measurement.trace import ARRIVALS, LENGTHS
from optimizer.prompt_lines import BUNDLED_PROMPTS, BUNDLED_TEXTS

VERSION: Final = 1
MOST_ARMS: Final = 8
MOST_SPEED: Final = 1000.0
MAX_TOKENS: Final = 32
"""Tokens of an answer, by default."""
REPLAYED: Final = 16
"""Requests per round that replays a trace, by default."""
_TAKEN: Final = ("base", "texts", "changes")
"""Names used in a result's quality section, which no adapter may have."""
_OURS: Final = ("--model", "--served-model-name", "--port", "--host", "--adapter-cache-dir")


@dataclass(frozen=True, slots=True)
class Arm:
    """One worker configuration to compare.

    Attributes:
        flags: of `python -m worker_engine`, in addition to those that the comparison sets.
        price: of the machine that the arm would run on; None takes the order's.
    """

    name: str
    model: Path
    flags: tuple[str, ...]
    environment: Mapping[str, str]
    price: Price | None

    @classmethod
    def read(cls, fields: SpecFields) -> Self:
        flags = fields.texts("flags")
        if ours := [flag for flag in flags if flag.split("=")[0] in _OURS]:
            raise fields.error("flags", f"{ours[0]} is set by the comparison")
        environment = fields.section("environment")
        names = fields.get("environment") or {}
        read = cls(
            fields.text("name"),
            Path(fields.text("model")),
            flags,
            {name: environment.text(name, "") for name in names},
            Price.read(fields.section("price")) if "price" in fields else None,
        )
        fields.end()
        return read


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter requested on every arm. `prompts`: its own for quality; None takes the order's."""

    name: str
    folder: Path
    prompts: Path | None

    @classmethod
    def read(cls, fields: SpecFields) -> Self:
        read = cls(
            fields.text("name"),
            Path(fields.text("folder")),
            Path(fields.text("prompts")) if "prompts" in fields else None,
        )
        fields.end()
        return read


class Scoring(enum.StrEnum):
    NONE = "none"
    EXACT = "exact"
    REGEX = "regex"
    JSON_SCHEMA = "json_schema"


@dataclass(frozen=True, slots=True)
class Quality:
    """The quality part of the comparison.

    Attributes:
        texts: held-out texts for perplexity.
        prompts: number of prompts answered, for agreement, scores and the KL divergence on answers.
        samples: number of answers shown side by side.
    """

    texts: Path
    most_texts: int
    text_tokens: int
    prompts: int
    answer_tokens: int
    scoring: Scoring
    pattern: str
    schema: Mapping[str, Any] | None
    samples: int

    @classmethod
    def read(cls, fields: SpecFields) -> Self:
        scorer = fields.section("scorer")
        scoring = scorer.choice("kind", Scoring, Scoring.NONE)
        pattern = scorer.text("pattern") if scoring is Scoring.REGEX else ""
        schema = scorer.get("schema") if scoring is Scoring.JSON_SCHEMA else None
        if scoring is Scoring.JSON_SCHEMA and not isinstance(schema, dict):
            raise scorer.error("schema", "must be a JSON schema, as an object")
        scorer.end()
        read = cls(
            Path(fields.text("texts", str(BUNDLED_TEXTS))),
            fields.whole("most_texts", 64, least=0, most=10_000),
            fields.whole("text_tokens", 256, least=2, most=8192),
            fields.whole("prompts", 16, least=0, most=10_000),
            fields.whole("answer_tokens", 48, most=4096),
            scoring,
            pattern,
            schema,
            fields.whole("samples", 4, least=0, most=50),
        )
        fields.end()
        return read


@dataclass(frozen=True, slots=True)
class Level:
    """So many streams at once, each request sent when another has ended; or a trace's arrivals.

    Attributes:
        streams: 0 where arrivals are replayed.
        speed: as many times as fast as the trace; 0 where streams take turns.
    """

    streams: int = 0
    speed: float = 0.0

    @property
    def name(self) -> str:
        """In a result's figures: 4 for streams, 4x for a speed."""
        return f"{self.speed:g}x" if self.speed else str(self.streams)


@dataclass(frozen=True, slots=True)
class Load:
    """The source and number of requests.

    Attributes:
        prompts: JSON lines; None where lengths come from `trace`.
        trace: CSV of lengths, and of arrivals where `speeds` replays them.
        concurrency: numbers of concurrent streams; empty where arrivals are replayed.
        speeds: replay speeds relative to the trace; empty with `concurrency`.
        rounds: measured rounds; 0 takes the least that the family of figures needs, plus two.
        requests: per stream of a round at each concurrency; at each speed, in total.
        adapters: requests rotate through the order's adapters; else the base model answers all.
    """

    prompts: Path | None
    trace: Path | None
    prompt_scale: int
    output_scale: int
    most_prompt: int
    concurrency: tuple[int, ...]
    speeds: tuple[float, ...]
    rounds: int
    warm_up: int
    requests: int
    max_tokens: int
    ignore_eos: bool
    adapters: bool

    @classmethod
    def read(cls, fields: SpecFields) -> Self:
        trace = fields.text("trace") if "trace" in fields else ""
        prompt_set = _prompt_set(fields)
        prompts = Path(fields.text("prompts", str(prompt_set.path if prompt_set else BUNDLED_PROMPTS)))
        speeds = fields.decimals("speeds", most=MOST_SPEED)
        if speeds and not trace:
            raise fields.error("speeds", "replays a trace's arrivals: give trace, too")
        if speeds and "concurrency" in fields:
            raise fields.error(
                "speeds", "and concurrency exclude each other: a trace says when requests come"
            )
        bundled = ARRIVALS if speeds else LENGTHS
        read = cls(
            None if trace else prompts,
            (bundled if trace == "bundled" else Path(trace)) if trace else None,
            fields.whole("prompt_scale", 1),
            fields.whole("output_scale", 1),
            fields.whole("most_prompt", 2048),
            () if speeds else fields.numbers("concurrency", (1, 4), most=256),
            speeds,
            fields.whole("rounds", 0, least=0, most=1000),
            fields.whole("warm_up", 1, least=0, most=100),
            fields.whole("requests", REPLAYED if speeds else 1, most=1000),
            fields.whole("max_tokens", prompt_set.max_tokens if prompt_set else MAX_TOKENS, most=8192),
            fields.flag("ignore_eos", True),
            fields.flag("adapters"),
        )
        fields.end()
        return read

    @property
    def levels(self) -> tuple[Level, ...]:
        """The load levels of each round."""
        if self.speeds:
            return tuple(Level(speed=speed) for speed in self.speeds)
        return tuple(Level(streams=streams) for streams in self.concurrency)


def _prompt_set(fields: SpecFields) -> BundledPrompts | None:
    """Return the bundled set that the load names, if any. Raises SpecError if it has two sources."""
    sources = [name for name in ("prompts", "prompt_set", "trace") if name in fields]
    if len(sources) > 1:
        raise fields.error(sources[-1], f"and {' and '.join(sources[:-1])} exclude each other")
    return BUNDLED[fields.choice("prompt_set", BundledName)] if "prompt_set" in fields else None


@dataclass(frozen=True, slots=True)
class ComparisonOrder:
    """A comparison of arms; the first one is the original, with which the others are compared."""

    arms: tuple[Arm, ...]
    adapters: tuple[Adapter, ...]
    load: Load
    quality: Quality
    price: Price | None
    seed: int

    @classmethod
    def read(cls, fields: SpecFields) -> Self:
        """Raises SpecError naming the field that is unknown, missing or malformed."""
        fields.version(VERSION)
        order = cls(
            tuple(Arm.read(item) for item in fields.sections("arms")),
            tuple(Adapter.read(item) for item in fields.sections("adapters")),
            Load.read(fields.section("load")),
            Quality.read(fields.section("quality")),
            Price.read(fields.section("price")) if "price" in fields else None,
            fields.whole("seed", 0, least=0),
        )
        fields.end()
        if not 2 <= len(order.arms) <= MOST_ARMS:
            raise SpecError(f"arms must be 2 to {MOST_ARMS}, the first of them the original")
        for kind, names in (("arms", order.arms), ("adapters", order.adapters)):
            if len({item.name for item in names}) != len(names):
                raise SpecError(f"{kind} must have different names")
        if taken := [adapter.name for adapter in order.adapters if adapter.name in _TAKEN]:
            raise SpecError(f"no adapter may be called {taken[0]}: in the result that is something else")
        if order.load.adapters and not order.adapters:
            raise SpecError("load.adapters asks for adapters, of which the order names none")
        return order
