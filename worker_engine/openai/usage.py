"""Tokens of an answer so far: each prompt once, the completions of all its choices."""

from __future__ import annotations

from typing import Any

from worker_engine.protocol import TokenDelta


class AnswerUsage:
    """Sums that a delta changes at the cost of its own prompt's choices, however many prompts there are."""

    def __init__(self, n: int, *, thinks: bool = False) -> None:
        """`n` choices have a prompt: choice `index` is of prompt `index // n`. `thinks`: thoughts count."""
        self._n, self._thinks = n, thinks
        self._newest: dict[int, dict[int, TokenDelta]] = {}
        self._counts: dict[int, tuple[int, int, int, int]] = {}
        self._sums = (0, 0, 0, 0)

    def note(self, index: int, delta: TokenDelta) -> None:
        """Takes the counts of choice `index` over."""
        prompt = index // self._n
        choices = self._newest.setdefault(prompt, {})
        choices[index] = delta
        deltas = choices.values()
        counts = (
            max(item.prompt_tokens for item in deltas),
            # A prompt is counted once, and the first of its choices to run may have computed it.
            min(item.cached_tokens for item in deltas),
            sum(item.completion_tokens for item in deltas),
            sum(item.reasoning_tokens for item in deltas),
        )
        before = self._counts.get(prompt, (0, 0, 0, 0))
        self._counts[prompt] = counts
        self._sums = (
            self._sums[0] + counts[0] - before[0],
            self._sums[1] + counts[1] - before[1],
            self._sums[2] + counts[2] - before[2],
            self._sums[3] + counts[3] - before[3],
        )

    def to_dict(self) -> dict[str, Any]:
        """OpenAI's `usage`."""
        prompt, cached, completion, reasoning = self._sums
        thoughts = {"completion_tokens_details": {"reasoning_tokens": reasoning}} if self._thinks else {}
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
            **thoughts,
        }
