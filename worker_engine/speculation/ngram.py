"""Draft tokens by n-grams: where a sequence's last tokens occurred before, it may continue in the same way.

Prompt lookup (Saxena 2023) over prompt and completion. Texts that quote, edit or extract repeat many
consecutive tokens. Other texts rarely get drafts, at a cost of two look-ups per token.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import ClassVar, Final

from worker_engine.sequence import Sequence
from worker_engine.speculation.base import Proposer

SIZES: Final = (4, 2)
"""Tokens that must match; the longer n-gram's last position is used if there is one."""
_BITS: Final = 21
"""Bits of a token id in an n-gram's key: vocabularies have up to 2**18 tokens."""


class NgramIndex:
    """Maps each n-gram of a growing list of tokens to the end of its last earlier occurrence.

    About 110 bytes for each token and size: 1.8 MB for 8,192 tokens.
    """

    __slots__ = ("_ends", "_matches", "_seen")

    def __init__(self) -> None:
        self._ends: tuple[dict[int, int], ...] = tuple({} for _ in SIZES)
        self._matches: list[int | None] = [None] * len(SIZES)
        self._seen = 0

    def follow(self, token_ids: Items[int]) -> None:
        """Add the tokens of `token_ids` beyond the last call's."""
        total = len(token_ids)
        if total == self._seen:
            return
        for at, (size, ends) in enumerate(zip(SIZES, self._ends, strict=True)):
            mask = (1 << _BITS * size) - 1
            first, key = max(self._seen, size - 1), 0
            for token in token_ids[max(0, first - size + 1) : first]:
                key = key << _BITS | token
            before: int | None = None
            for end in range(first, total):
                key = (key << _BITS | token_ids[end]) & mask
                before = ends.get(key)
                ends[key] = end + 1
            self._matches[at] = before
        self._seen = total

    def guess(self, token_ids: Items[int], most: int) -> list[int]:
        """Return the tokens after the last n-gram's earlier occurrence; past the end they repeat."""
        total = len(token_ids)
        match = next((end for end in self._matches if end is not None), None)
        if match is None:
            return []
        period = total - match
        if period >= most:
            return list(token_ids[match : match + most])
        return [token_ids[match + place % period] for place in range(most)]


class NgramProposer(Proposer):
    """Proposes from one n-gram index per running sequence."""

    free: ClassVar[bool] = True

    def __init__(self) -> None:
        self._indices: dict[Sequence, NgramIndex] = {}

    def propose(self, wanted: Items[tuple[Sequence, int]]) -> list[list[int]]:
        guesses = []
        for sequence, most in wanted:
            index = self._indices.get(sequence)
            if index is None:
                index = self._indices[sequence] = NgramIndex()
            index.follow(sequence.token_ids)
            guesses.append(index.guess(sequence.token_ids, most))
        return guesses

    def seconds(self, sequences: int, longest: int) -> float:
        return 0.0

    def forget(self, sequence: Sequence) -> None:
        self._indices.pop(sequence, None)

    def close(self) -> None:
        self._indices.clear()
