"""Prompt sets that come with Graftwork, beside those that operators upload."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_DATA: Final = Path(__file__).parent / "data"


class BundledName(enum.StrEnum):
    """Names of the bundled sets in an order of `optimizer compare`."""

    QUESTION_ANSWERING = "question_answering"


@dataclass(frozen=True, slots=True)
class BundledPrompts:
    """A JSON Lines file of prompts.

    Attributes:
        title: shown in lists of prompt sets.
        max_tokens: upper bound of each answer, and the load's default.
        sha256, lines, size: of the file; constants, since a migration stores them.
    """

    name: BundledName
    title: str
    max_tokens: int
    sha256: str
    lines: int
    size: int

    @property
    def path(self) -> Path:
        return _DATA / f"{self.name}.jsonl"


BUNDLED: Final = {
    prompts.name: prompts
    for prompts in (
        BundledPrompts(
            BundledName.QUESTION_ANSWERING,
            "Question answering, 500 to 1,000 tokens (bundled)",
            max_tokens=250,
            sha256="4d80958a85ce74a1bba87ac34104568b30c2f0d30017d40851583df18ab0ef5f",
            lines=64,
            size=184_757,
        ),
    )
}


def bundled_prompts(sha256: str) -> BundledPrompts | None:
    """Return the bundled set with this digest, or None."""
    return next((prompts for prompts in BUNDLED.values() if prompts.sha256 == sha256), None)
