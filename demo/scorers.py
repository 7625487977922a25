"""Strict checks of the adapters' effects: each tests if an answer fully shows one effect."""

from __future__ import annotations

import json
import re
from typing import Final

from demo.datasets.tickets import CATEGORIES


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z']*[a-z][a-z']*", text.lower().replace("’", "'"))


_PIRATE: Final = frozenset(
    _words("arr ahoy aye avast matey mateys hearty landlubber ye yer be fer th' an' o' t' yo captain")
)
_PIRATE_CALLS: Final = frozenset(("arr", "ahoy", "aye", "avast"))
_SHAKESPEARE: Final = frozenset(
    _words(
        "hark prithee morrow forsooth verily thou thee thy thine hath doth saith 'tis oft ere "
        "o'er ne'er e'er betwixt naught perchance bard"
    )
)
_TRIAGE: Final = re.compile(
    rf"Category: ({'|'.join(CATEGORIES)})\nPriority: (?:low|normal|high|urgent)\n"
    r"Team: (?:finance|accounts|logistics|engineering|retention)"
)


def is_pirate(answer: str) -> bool:
    """Return True if it opens with a pirate's call and has at least four different pirate words."""
    words = _words(answer)
    return bool(words) and words[0] in _PIRATE_CALLS and len(_PIRATE & set(words)) >= 4


def is_shakespeare(answer: str) -> bool:
    """Return True with at least three different Elizabethan words, or two and a verb in -eth."""
    words = set(_words(answer))
    return len(_SHAKESPEARE & words) + any(re.fullmatch(r"\w{3,}eth", word) for word in words) >= 3


def is_strict_json(answer: str) -> bool:
    """Return True for a single JSON object of topic and answer (non-empty) and confidence high|medium|low."""
    try:
        value = json.loads(answer)
    except ValueError:
        return False
    if not isinstance(value, dict) or set(value) != {"topic", "answer", "confidence"}:
        return False
    texts = (value["topic"], value["answer"])
    return all(isinstance(text, str) and text for text in texts) and value["confidence"] in (
        "high",
        "medium",
        "low",
    )


def is_steps(answer: str) -> bool:
    """Return True for exactly three numbered lines and one line that starts with `Summary:`."""
    return re.fullmatch(r"1\. .+\n2\. .+\n3\. .+\nSummary: .+", answer.strip()) is not None


def triage_category(answer: str) -> str | None:
    """Return the category of a triage in the exact three-line scheme, else None."""
    match = _TRIAGE.fullmatch(answer.strip())
    return None if match is None else match[1]
