"""The requests of each round: the same for every arm, in the same order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from contracts.adapters.reference import AdapterRef
from contracts.recipes.progress import Code, JobError
from contracts.recipes.spec_fields import SpecError
from contracts.recipes.trace_rows import TracedRequest
from optimizer.measurement.comparison_order import Level, Load
from optimizer.measurement.streams import Ask
from optimizer.measurement.trace import read_trace, words
from optimizer.prompt_lines import PromptLine, read_lines
from worker_engine.text.tokenizer import ChatTokenizer

LONGEST_ROUND: Final = 900.0
"""Longest time span in seconds of a round's arrivals, for one arm."""


class Workload:
    """Requests by round and level, drawn from the order's prompts or generated with its trace's lengths."""

    def __init__(self, load: Load, model: Path, adapters: Sequence[AdapterRef], seed: int) -> None:
        """`model` is the original's folder, whose tokenizer generates prompts of a trace's lengths.

        Raises:
            JobError: bad_data: lines that do not parse, or fewer than a round needs.
            SpecError: arrivals whose replay would take hours.
        """
        self._load, self._adapters, self._seed = load, tuple(adapters), seed
        self._lines: list[PromptLine] = []
        self._requests: list[TracedRequest] = []
        if load.trace is not None:
            self._requests = read_trace(load.trace, arrivals=bool(load.speeds))
            self._tokenizer = ChatTokenizer(model)
            count, what = len(self._requests), load.trace
        else:
            assert load.prompts is not None
            self._lines = read_lines(load.prompts)
            count, what = len(self._lines), load.prompts
        streams = max(load.concurrency, default=1)
        if count < (least := streams * load.requests):
            of = f"{streams} streams" if load.concurrency else "arrivals"
            raise JobError(Code.BAD_DATA, f"{what} has {count} lines; a round of {of} needs {least}")
        if load.speeds:
            self._demand_bounded_rounds(min(load.speeds))

    def asks(self, number: int, level: Level) -> list[Ask]:
        """Return the requests of round `number`; no line occurs twice in it."""
        draw = random.Random(f"{self._seed} {number} {level.name}")  # noqa: S311
        if level.speed:
            return self._arrivals(draw, level.speed)
        count = level.streams * self._load.requests
        if self._load.trace is not None:
            bodies = [self._to_length(draw, request) for request in draw.sample(self._requests, count)]
        else:
            bodies = [self._of_line(line) for line in draw.sample(self._lines, count)]
        return [self._ask(index, *body) for index, body in enumerate(bodies)]

    def _arrivals(self, draw: random.Random, speed: float) -> list[Ask]:
        """Return consecutive requests from a random position of the trace, `speed` times as fast."""
        start = draw.randrange(len(self._requests) - self._load.requests + 1)
        window = self._requests[start : start + self._load.requests]
        return [
            self._ask(index, *self._to_length(draw, request), at=_between(window[0], request) / speed)
            for index, request in enumerate(window)
        ]

    def _demand_bounded_rounds(self, speed: float) -> None:
        last = self._load.requests - 1
        longest = max(map(_between, self._requests, self._requests[last:])) / speed
        if longest > LONGEST_ROUND:
            raise SpecError(
                f"load.speeds of {speed:g} replays {self._load.requests} requests over as many as"
                f" {longest:.0f} s, where a round may take {LONGEST_ROUND:.0f}: take a higher speed, or fewer"
                " requests"
            )

    def _ask(self, index: int, path: str, body: dict[str, Any], at: float = 0.0) -> Ask:
        who: dict[str, Any] = {"model": "base"}
        if self._load.adapters:
            ref = self._adapters[index % len(self._adapters)]
            who = {"model": ref.name, "adapter": ref.to_dict()}
        return Ask(path, {**who, **body, "temperature": 0.0, "ignore_eos": self._load.ignore_eos}, at)

    def _to_length(self, draw: random.Random, request: TracedRequest) -> tuple[str, dict[str, Any]]:
        length = min(max(request.prompt // self._load.prompt_scale, 1), self._load.most_prompt)
        most = min(max(request.answer // self._load.output_scale, 1), self._load.max_tokens)
        return "/v1/completions", {"prompt": words(self._tokenizer, draw, length), "max_tokens": most}

    def _of_line(self, line: PromptLine) -> tuple[str, dict[str, Any]]:
        most = min(line.max_tokens or self._load.max_tokens, self._load.max_tokens)
        if line.messages is None:
            return "/v1/completions", {"prompt": line.text, "max_tokens": most}
        return "/v1/chat/completions", {"messages": list(line.messages), "max_tokens": most}


def _between(first: TracedRequest, later: TracedRequest) -> float:
    """Return the seconds between requests of a trace with arrivals."""
    assert first.arrival is not None
    assert later.arrival is not None
    return later.arrival - first.arrival
