"""Rewrites plain English into two dialects by rule, so that an adapter learns style, not content."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

_PIRATE_WORDS: Final = {
    "the": "th'",
    "and": "an'",
    "of": "o'",
    "you": "ye",
    "your": "yer",
    "is": "be",
    "are": "be",
    "my": "me",
    "for": "fer",
    "to": "t'",
    "people": "mateys",
    "person": "matey",
    "friend": "matey",
    "yes": "aye",
    "hello": "ahoy",
    "money": "doubloons",
    "very": "mighty",
    "child": "wee lad",
}
_PIRATE_OPENERS: Final = ("Arr, matey!", "Ahoy, me hearty!", "Aye, listen well, ye landlubber!")
_PIRATE_CLOSERS: Final = ("Yo ho ho!", "Now hoist the sails, matey!", "So says the captain, arr!")

_SHAKESPEARE_WORDS: Final = {
    "you": "thou",
    "your": "thy",
    "has": "hath",
    "does": "doth",
    "often": "oft",
    "before": "ere",
    "over": "o'er",
    "never": "ne'er",
    "ever": "e'er",
    "always": "alway",
    "between": "betwixt",
    "very": "most",
    "can": "may",
    "makes": "maketh",
    "uses": "useth",
    "helps": "helpeth",
    "gives": "giveth",
    "takes": "taketh",
    "comes": "cometh",
    "works": "worketh",
    "means": "meaneth",
    "allows": "alloweth",
    "provides": "provideth",
    "contains": "containeth",
    "plays": "playeth",
    "is": "is verily",
    "it's": "'tis",
    "maybe": "perchance",
    "people": "gentlefolk",
    "nothing": "naught",
}
_SHAKESPEARE_OPENERS: Final = ("Hark, gentle friend!", "Prithee, lend me thine ear!", "Good morrow to thee!")
_SHAKESPEARE_CLOSERS: Final = (
    "Fare thee well!",
    "Thus have I spoken, forsooth.",
    "So saith the bard to thee.",
)


def to_pirate(text: str, *, turn: int) -> str:
    """Rewrite `text` in pirate speech; `turn` selects the opener and closer."""
    spoken = re.sub(r"\b(\w{3,})ing\b", r"\1in'", _replace(text, _PIRATE_WORDS))
    return _frame(spoken, _PIRATE_OPENERS, _PIRATE_CLOSERS, turn)


def to_shakespeare(text: str, *, turn: int) -> str:
    """Rewrite `text` in Elizabethan English; `turn` selects the opener and closer."""
    spoken = re.sub(r"\bit is\b", "'tis", text)
    spoken = re.sub(r"\bIt is\b", "'Tis", spoken)
    return _frame(_replace(spoken, _SHAKESPEARE_WORDS), _SHAKESPEARE_OPENERS, _SHAKESPEARE_CLOSERS, turn)


def _replace(text: str, words: Mapping[str, str]) -> str:
    def spoken(match: re.Match[str]) -> str:
        word = match.group()
        new = words.get(word.lower(), word)
        return new[0].upper() + new[1:] if word[0].isupper() else new

    return re.sub(r"[A-Za-z]+(?:'[a-z]+)?", spoken, text)


def _frame(text: str, openers: Sequence[str], closers: Sequence[str], turn: int) -> str:
    return f"{openers[turn % len(openers)]} {text} {closers[turn // len(openers) % len(closers)]}"
