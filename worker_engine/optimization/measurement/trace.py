"""Lengths of requests as a service saw them, and prompts made of words to these lengths."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import Final

from worker_engine.optimization.progress import Code, JobError
from worker_engine.tokenizer import ChatTokenizer

LENGTHS: Final = Path(__file__).parent / "data" / "conversation_lengths.csv"
"""512 requests of the conversation service in the Azure LLM inference trace 2023 (CC BY 4.0, Microsoft)."""
COLUMNS: Final = ("context_tokens", "generated_tokens")
_WORDS: Final = """
the sea harbour letter window morning people market river answer garden question small before never
music teacher number village winter carry bridge story between silver friend mountain under paper
evening doctor train colour listen because island machine simple kitchen travel forest engine
remember bird promise yellow street water captain later quiet history always summer table science
rain decide
"""


def read_trace(path: Path) -> list[tuple[int, int]]:
    """(tokens of the prompt, tokens generated) by request.

    Raises:
        JobError: bad_data, with the line's number.
    """
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            rows = csv.DictReader(lines)
            if missing := [name for name in COLUMNS if name not in (rows.fieldnames or ())]:
                raise JobError(Code.BAD_DATA, f"{path} has no column {missing[0]}")
            return [_row(path, rows.line_num, [row[name] for name in COLUMNS]) for row in rows]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise JobError(Code.BAD_DATA, f"cannot read {path}: {error}") from error


def _row(path: Path, line: int, cells: list[str | None]) -> tuple[int, int]:
    try:
        prompt, answer = (int(cell or "") for cell in cells)
    except ValueError:
        raise JobError(
            Code.BAD_DATA, f"{path}, line {line}: lengths must be whole numbers, got {cells}"
        ) from None
    if prompt < 1 or answer < 1:
        raise JobError(Code.BAD_DATA, f"{path}, line {line}: lengths must be 1 or more, got {cells}")
    return prompt, answer


def words(tokenizer: ChatTokenizer, draw: random.Random, length: int) -> list[int]:
    """A prompt of `length` tokens that no prefix cache knows."""
    text = " ".join(draw.choices(_WORDS.split(), k=length))
    return tokenizer.encode(text, add_special_tokens=False)[:length]
