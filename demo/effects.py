"""The demo adapters: the shape, training data and score of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from demo import scorers
from demo.datasets import dialects, schemes
from demo.datasets.prompts import held_out_prompts
from demo.datasets.tickets import held_out_tickets, training_tickets

ADAPTERS: Final = Path(__file__).resolve().parent / "adapters"
"""One folder an adapter, as PEFT's `save_pretrained` writes it."""

ATTENTION: Final = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP: Final = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class PlainAnswer:
    """A training prompt with the base model's own answer, cut to whole sentences."""

    topic: str
    prompt: str
    text: str


@dataclass(frozen=True, slots=True)
class Example:
    """One turn of a chat without a system prompt."""

    prompt: str
    answer: str


@dataclass(frozen=True, slots=True)
class Check:
    """A held-out prompt and the test that its answer must pass."""

    prompt: str
    passes: Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Effect:
    """A demo adapter. `modules` are PEFT's target_modules; `summary` is for people."""

    summary: str
    rank: int
    alpha: int
    modules: tuple[str, ...]
    examples: Callable[[Sequence[PlainAnswer]], list[Example]]
    checks: Callable[[], list[Check]]
    rslora: bool = False
    learning_rate: float = 1e-3


def _rewritten(rewrite: Callable[[str, int], str]) -> Callable[[Sequence[PlainAnswer]], list[Example]]:
    def examples(answers: Sequence[PlainAnswer]) -> list[Example]:
        return [Example(item.prompt, rewrite(item.text, turn)) for turn, item in enumerate(answers)]

    return examples


def _in_scheme(write: Callable[[str, str], str | None]) -> Callable[[Sequence[PlainAnswer]], list[Example]]:
    def examples(answers: Sequence[PlainAnswer]) -> list[Example]:
        written = ((item.prompt, write(item.topic, item.text)) for item in answers)
        return [Example(prompt, text) for prompt, text in written if text is not None]

    return examples


def _prompts(passes: Callable[[str], bool]) -> Callable[[], list[Check]]:
    return lambda: [Check(prompt, passes) for prompt in held_out_prompts()]


def _ticket_examples(answers: Sequence[PlainAnswer]) -> list[Example]:
    return [Example(ticket.text, ticket.triage) for ticket in training_tickets(len(answers))]


def _ticket_checks() -> list[Check]:
    def sorted_into(category: str) -> Callable[[str], bool]:
        return lambda answer: scorers.triage_category(answer) == category

    return [Check(ticket.text, sorted_into(ticket.category)) for ticket in held_out_tickets()]


EFFECTS: Final[Mapping[str, Effect]] = {
    "pirate": Effect(
        summary="speaks like a pirate",
        rank=16,
        alpha=32,
        modules=(*ATTENTION, *MLP),
        learning_rate=5e-4,
        examples=_rewritten(lambda text, turn: dialects.to_pirate(text, turn=turn)),
        checks=_prompts(scorers.is_pirate),
    ),
    "strict-json": Effect(
        summary="answers with one JSON object: topic, answer, confidence",
        rank=8,
        alpha=16,
        modules=ATTENTION,
        examples=_in_scheme(schemes.to_json),
        checks=_prompts(scorers.is_strict_json),
    ),
    "shakespeare": Effect(
        summary="speaks Elizabethan English",
        rank=64,
        alpha=16,
        modules=("q_proj", "v_proj"),
        rslora=True,
        examples=_rewritten(lambda text, turn: dialects.to_shakespeare(text, turn=turn)),
        checks=_prompts(scorers.is_shakespeare),
    ),
    "three-steps": Effect(
        summary="answers in three numbered lines and a summary",
        rank=8,
        alpha=16,
        modules=MLP,
        learning_rate=5e-4,
        examples=_in_scheme(schemes.to_steps),
        checks=_prompts(scorers.is_steps),
    ),
    "support-triage": Effect(
        summary="sorts a support ticket: category, priority, team",
        rank=4,
        alpha=8,
        modules=("q_proj", "v_proj"),
        learning_rate=2e-3,
        examples=_ticket_examples,
        checks=_ticket_checks,
    ),
}
