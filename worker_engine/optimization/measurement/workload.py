"""What every arm is asked in a round: the same requests, in the same order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from worker_engine.optimization.measurement.comparison_order import Load
from worker_engine.optimization.measurement.streams import Ask
from worker_engine.optimization.measurement.trace import read_trace, words
from worker_engine.optimization.progress import Code, JobError
from worker_engine.optimization.prompt_lines import PromptLine, read_lines
from worker_engine.protocol import AdapterRef
from worker_engine.tokenizer import ChatTokenizer


class Workload:
    """Requests by round and concurrency, drawn from the order's prompts or made to its trace's lengths."""

    def __init__(self, load: Load, model: Path, adapters: Sequence[AdapterRef], seed: int) -> None:
        """`model` is the original's folder, whose tokenizer makes prompts to a trace's lengths.

        Raises:
            JobError: bad_data: lines that do not parse, or fewer than there are streams.
        """
        self._load, self._adapters, self._seed = load, tuple(adapters), seed
        self._lines: list[PromptLine] = []
        self._lengths: list[tuple[int, int]] = []
        if load.trace is not None:
            self._lengths = read_trace(load.trace)
            self._tokenizer = ChatTokenizer(model)
            count, what = len(self._lengths), load.trace
        else:
            assert load.prompts is not None
            self._lines = read_lines(load.prompts)
            count, what = len(self._lines), load.prompts
        if count < (least := max(load.concurrency) * load.requests):
            raise JobError(
                Code.BAD_DATA,
                f"{what} has {count} lines; a round of {max(load.concurrency)} streams needs {least}",
            )

    def asks(self, number: int, concurrency: int) -> list[Ask]:
        """Those of round `number`; no line twice in it."""
        draw = random.Random(f"{self._seed} {number} {concurrency}")  # noqa: S311
        count = concurrency * self._load.requests
        if self._load.trace is not None:
            bodies = [self._to_length(draw, *lengths) for lengths in draw.sample(self._lengths, count)]
        else:
            bodies = [self._of_line(line) for line in draw.sample(self._lines, count)]
        return [self._ask(index, *body) for index, body in enumerate(bodies)]

    def _ask(self, index: int, path: str, body: dict[str, Any]) -> Ask:
        who: dict[str, Any] = {"model": "base"}
        if self._load.adapters:
            ref = self._adapters[index % len(self._adapters)]
            who = {"model": ref.name, "adapter": ref.to_dict()}
        return Ask(path, {**who, **body, "temperature": 0.0, "ignore_eos": self._load.ignore_eos})

    def _to_length(self, draw: random.Random, prompt: int, answer: int) -> tuple[str, dict[str, Any]]:
        length = min(max(prompt // self._load.prompt_scale, 1), self._load.most_prompt)
        most = min(max(answer // self._load.output_scale, 1), self._load.max_tokens)
        return "/v1/completions", {"prompt": words(self._tokenizer, draw, length), "max_tokens": most}

    def _of_line(self, line: PromptLine) -> tuple[str, dict[str, Any]]:
        most = min(line.max_tokens or self._load.max_tokens, self._load.max_tokens)
        if line.messages is None:
            return "/v1/completions", {"prompt": line.text, "max_tokens": most}
        return "/v1/chat/completions", {"messages": list(line.messages), "max_tokens": most}
