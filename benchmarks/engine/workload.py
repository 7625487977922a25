"""What is asked of every contender: prompts, lengths, adapters and how many streams at once."""

from __future__ import annotations

import csv
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer

from optimizer.measurement.trace import LENGTHS

PROMPT_SCALE: Final = 8
OUTPUT_SCALE: Final = 2
MAX_PROMPT: Final = 512
MAX_OUTPUT: Final = 96
"""Prompts get an eighth and outputs half of the trace's tokens: medians near 128 and 64, which a small model
on few cores answers in a time that one can wait for."""

_WORDS: Final = """
the sea harbour letter window morning people market river answer garden question small before never
music teacher number village winter carry bridge story between silver friend mountain under paper
evening doctor train colour listen because island machine simple kitchen travel forest engine
remember bird promise yellow street water captain later quiet history always summer table science
rain decide
"""


@dataclass(frozen=True, slots=True)
class Request:
    """One completion.

    Attributes:
        prompt: token ids; its first words are drawn anew for each request, so no cache knows it.
        new_tokens: to generate, greedily and past any end-of-sequence token.
        adapter: index of the adapter; None asks the base model.
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
        adapters: requests take them in turn; 0 asks the base model alone.
        rounds: how often all contenders run it, in turn.
        goal: tokens/s beside each peer.
        goal_of: the peers that `goal` is about; all when empty.
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
"""One round of these, for a look in three minutes."""


class Workload:
    """The requests of every round, the same for all contenders."""

    def __init__(self, model: Path) -> None:
        """`model` is the checkpoint's folder, whose tokenizer writes the prompts."""
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        with LENGTHS.open(encoding="utf-8", newline="") as lines:
            rows = [
                (int(row["context_tokens"]), int(row["generated_tokens"])) for row in csv.DictReader(lines)
            ]
        self._lengths = [
            (
                min(max(prompt // PROMPT_SCALE, 1), MAX_PROMPT),
                min(max(output // OUTPUT_SCALE, 1), MAX_OUTPUT),
            )
            for prompt, output in rows
        ]

    def requests(self, scenario: Scenario, number: int) -> list[Request]:
        """Those of round `number`; rounds share lengths, so that they can be compared, and no prompt."""
        draw = random.Random(f"{scenario.name} {number}")
        return [
            Request(
                self._prompt(draw, prompt),
                output,
                index % scenario.adapters if scenario.adapters else None,
            )
            for index, (prompt, output) in enumerate(self._spread(scenario.requests))
        ]

    def short(self, adapters: int) -> list[Request]:
        """One prompt for the base model and for each adapter, before anything is timed."""
        prompt = self._prompt(random.Random("short"), 32)
        return [Request(prompt, 24, adapter) for adapter in (None, *range(adapters))]

    def _spread(self, count: int) -> list[tuple[int, int]]:
        """`count` lengths that stand for all, evenly from the cheapest to the dearest, in an order of no
        meaning. A generated token is counted as three of the prompt's: so chosen, few have all's means.
        """
        ranked = sorted(self._lengths, key=lambda item: item[0] + 3 * item[1])
        chosen = [ranked[(2 * index + 1) * len(ranked) // (2 * count)] for index in range(count)]
        random.Random(count).shuffle(chosen)
        return chosen

    def _prompt(self, draw: random.Random, length: int) -> tuple[int, ...]:
        text = " ".join(draw.choices(_WORDS.split(), k=length))
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids[:length])


def _scaled(tokens: str, divisor: int, most: int) -> int:
    return min(max(int(tokens) // divisor, 1), most)
