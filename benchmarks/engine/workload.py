"""The workload of every contender: prompts, lengths, adapters and number of streams."""

from __future__ import annotations

import csv
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer

from optimizer.measurement.trace import LENGTHS, WORDS

PROMPT_SCALE: Final = 8
OUTPUT_SCALE: Final = 2
MAX_PROMPT: Final = 512
MAX_OUTPUT: Final = 96
"""Prompts get an eighth and outputs half of the trace's tokens: medians near 128 and 64, which a small model
completes on few cores in reasonable time.
"""


@dataclass(frozen=True, slots=True)
class Request:
    """One completion.

    Attributes:
        prompt: token ids; its words are drawn anew for each request, so no cache has it.
        new_tokens: to generate, greedily and past any end-of-sequence token.
        adapter: index of the adapter; None for the base model.
    """

    prompt: tuple[int, ...]
    new_tokens: int
    adapter: int | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """One row of the comparison.

    Attributes:
        streams: requests in flight; the next is sent when one ends.
        requests: in one round.
        adapters: requests rotate through them; 0 uses the base model only.
        rounds: how often all contenders run it, alternating.
        goal: tokens/s relative to each peer.
        goal_of: the peers to which `goal` applies; all when empty.
    """

    name: str
    streams: int
    requests: int
    adapters: int
    rounds: int = 3
    goal: float | None = None
    goal_of: tuple[str, ...] = ()


SCENARIOS: Final = (
    Scenario("base_1", 1, 3, 0, goal=1.0, goal_of=("llama.cpp",)),
    Scenario("one_adapter_1", 1, 3, 1),
    Scenario("base_8", 8, 12, 0),
    Scenario("one_adapter_8", 8, 12, 1),
    Scenario("8_adapters_8", 8, 12, 8, goal=2.5),
    Scenario("base_32", 32, 40, 0),
    Scenario("8_adapters_32", 32, 40, 8, rounds=2, goal=4.0),
    Scenario("32_adapters_32", 32, 40, 32, rounds=1),
    Scenario("128_adapters_32", 32, 128, 128, rounds=1),
)
QUICK: Final = ("base_1", "8_adapters_8", "8_adapters_32")
"""One round of these, for an overview in three minutes."""


class Workload:
    """The requests of every round, the same for all contenders."""

    def __init__(self, model: Path) -> None:
        """`model` is the checkpoint's folder, whose tokenizer encodes the prompts."""
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        with LENGTHS.open(encoding="utf-8", newline="") as lines:
            rows = [
                (int(row["context_tokens"]), int(row["generated_tokens"])) for row in csv.DictReader(lines)
            ]
        self._lengths = [
            (min(max(prompt // PROMPT_SCALE, 1), MAX_PROMPT), min(max(output // OUTPUT_SCALE, 1), MAX_OUTPUT))
            for prompt, output in rows
        ]

    def requests(self, scenario: Scenario, number: int) -> list[Request]:
        """Return the requests of round `number`. Rounds share lengths, for comparability, but no prompt."""
        draw = random.Random(f"{scenario.name} {number}")
        return [
            Request(
                self._prompt(draw, prompt), output, index % scenario.adapters if scenario.adapters else None
            )
            for index, (prompt, output) in enumerate(self._spread(scenario.requests))
        ]

    def short(self, adapters: int) -> list[Request]:
        """Return one prompt for the base model and for each adapter, for the warm-up."""
        prompt = self._prompt(random.Random("short"), 32)
        return [Request(prompt, 24, adapter) for adapter in (None, *range(adapters))]

    def _spread(self, count: int) -> list[tuple[int, int]]:
        """Return `count` representative lengths, evenly spaced from cheapest to most expensive, in random
        order.

        A generated token is weighted as three prompt tokens, so that even few lengths have the means of all.
        """
        ranked = sorted(self._lengths, key=lambda item: item[0] + 3 * item[1])
        chosen = [ranked[(2 * index + 1) * len(ranked) // (2 * count)] for index in range(count)]
        random.Random(count).shuffle(chosen)
        return chosen

    def _prompt(self, draw: random.Random, length: int) -> tuple[int, ...]:
        text = " ".join(draw.choices(WORDS.split(), k=length))
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids[:length])
