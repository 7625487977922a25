"""llguidance behind two calls: a tokenizer read, a grammar compiled. Loads neither torch nor HTTP.

docs/adr/0006-structured-output.md says why this library.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from worker_engine.errors import InvalidRequest

if TYPE_CHECKING:
    # Loaded at the first grammar: the engine runs without it where no request asks for one.
    import llguidance

INTERNAL: Final = re.compile("(?:[A-Z][a-z]+)+")
"""How the library reports a grammar that no token can continue: the name of a state of its own."""


def read_tokenizer(path: Path, vocab_size: int, eos_token_ids: Sequence[int]) -> llguidance.LLTokenizer:
    """Takes 0.2-0.5 s for 49,152 tokens. Raises ValueError."""
    import llguidance

    text = path.read_text(encoding="utf-8")
    return llguidance.LLTokenizer(text, n_vocab=vocab_size, eos_token=list(eos_token_ids))


def compile_source(tokenizer: llguidance.LLTokenizer, source: str) -> llguidance.LLMatcher:
    """A matcher with its first mask computed. Raises InvalidRequest."""
    import llguidance

    try:
        matcher = llguidance.LLMatcher(tokenizer, source, log_level=0, limits=_limits())
    except ValueError as error:
        raise InvalidRequest(first_line(str(error))) from error
    # Most overly complex grammars fail at the first mask; its work is shared by every copy.
    matcher.compute_bitmask()
    if matcher.is_error():
        raise InvalidRequest(first_line(matcher.get_error()))
    return matcher


@cache
def _limits() -> llguidance.LLParserLimits:
    """Fuel, not time, so that the same grammar is always judged alike: about 10 ms of lexing a token."""
    import llguidance

    return llguidance.LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=100_000,
        step_max_items=20_000,
        max_lexer_states=50_000,
        verbose_errors=False,
    )


def first_line(text: str) -> str:
    """The library's message without its dump of states."""
    line = " ".join(text.split("<state>")[0].removesuffix("<non-verbose/>").split())
    if INTERNAL.fullmatch(line):
        return "it can match no text: look for a rule that leads to itself and nothing else"
    return line if len(line) <= 300 else line[:297] + "..."
