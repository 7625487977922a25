"""Requests as a service saw them, and prompts made of words to their lengths."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

from contracts.recipes.progress import Code, JobError
from contracts.recipes.trace_rows import TracedRequest, read_rows
from worker_engine.text.tokenizer import ChatTokenizer

_DATA: Final = Path(__file__).parent / "data"
LENGTHS: Final = _DATA / "conversation_lengths.csv"
"""512 requests of the conversation service in the Azure LLM inference trace 2023 (CC BY 4.0, Microsoft)."""
ARRIVALS: Final = _DATA / "conversation_arrivals.csv"
"""The first 512 of that trace, with their times: they came within 130 s."""
WORDS: Final = """
the sea harbour letter window morning people market river answer garden question small before never
music teacher number village winter carry bridge story between silver friend mountain under paper
evening doctor train colour listen because island machine simple kitchen travel forest engine
remember bird promise yellow street water captain later quiet history always summer table science
rain decide
"""


def read_trace(path: Path, *, arrivals: bool = False) -> list[TracedRequest]:
    """Its requests, in their order.

    Args:
        arrivals: it must tell when they came.

    Raises:
        JobError: bad_data, with the line's number.
    """
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            return read_rows(lines, str(path), arrivals=arrivals)
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(Code.BAD_DATA, f"cannot read {path}: {error}") from error


def words(tokenizer: ChatTokenizer, draw: random.Random, length: int) -> list[int]:
    """A prompt of `length` tokens that no prefix cache knows."""
    text = " ".join(draw.choices(WORDS.split(), k=length))
    return tokenizer.encode(text, add_special_tokens=False)[:length]
