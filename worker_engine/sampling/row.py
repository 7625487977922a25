"""Per-sequence sampling state on the host: random stream, token counts, biases, grammar."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Sequence as Items
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import numpy.typing as npt

from worker_engine.protocol import SamplingParams
from worker_engine.sampling.random_stream import stream_key, uniform

if TYPE_CHECKING:
    from worker_engine.text.structured_output import GrammarState
    from worker_engine.text.thinking.base import Thought

Ids = npt.NDArray[np.int64]
Values = npt.NDArray[np.float32]
NO_IDS: Final[Ids] = np.empty(0, np.int64)


class SamplingSource(Protocol):
    """A source of one row's sampling parameters: a sequence, or a draft token that the row follows."""

    @property
    def sampling(self) -> SamplingRow: ...

    @property
    def token_ids(self) -> Items[int]:
        """Prompt and completion tokens; may be empty where `sampling.follows` is False."""

    @property
    def next_index(self) -> int:
        """Index of the sampled token within the completion."""


class SamplingRow:
    """One sequence's sampling state, used in every batch that it is sampled in.

    Attributes:
        plain: the token is the logits' argmax, and no log probabilities are requested.
        edited: logits change before the token is chosen.
        follows: the choice depends on previous tokens, so the host must have read them.
        grammar: the completion's state in its grammar, if it has one.
        thought: the completion's thought, where it has any say in the next token: a budget of its own, or a
            grammar that begins after it.
    """

    __slots__ = (
        "_eos",
        "_key",
        "allowed",
        "bias_ids",
        "bias_values",
        "counts",
        "edited",
        "follows",
        "grammar",
        "params",
        "plain",
        "thought",
    )

    def __init__(
        self,
        params: SamplingParams,
        prompt: Items[int],
        *,
        eos: frozenset[int] = frozenset(),
        grammar: GrammarState | None = None,
        thought: Thought | None = None,
    ) -> None:
        self.params, self.grammar = params, grammar
        limited = thought is not None and thought.budget is not None
        self.thought = thought if limited or grammar is not None else None
        self._eos: Ids = np.array(sorted(eos | set(params.stop_token_ids)), np.int64)
        seed = secrets.randbits(64) if params.seed is None else params.seed
        self._key = stream_key(seed, params.choice)
        self.bias_ids: Ids = np.array([token for token, _ in params.logit_bias], np.int64)
        self.bias_values: Values = np.array([bias for _, bias in params.logit_bias], np.float32)
        penalised = params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1
        self.counts: TokenCounts | None = TokenCounts(prompt) if penalised else None
        self.edited = bool(
            penalised
            or params.logit_bias
            or params.min_tokens
            or params.bad_words
            or params.allowed_token_ids is not None
            or grammar is not None
            or self.thought is not None
        )
        self.allowed: Ids | None = None
        if params.allowed_token_ids is not None:
            self.allowed = np.array(params.allowed_token_ids, np.int64)
        self.follows = bool(penalised or params.bad_words or grammar is not None or limited)
        self.plain = params.greedy and not self.edited and params.logprobs is None

    def ahead(self, token: int) -> SamplingRow | None:
        """Return this row's state after `token`; None if its grammar forbids the token or ends with it.

        Also None within a thought that has a say in tokens: nothing is guessed there.
        """
        if self.thought is not None and self.thought.active:
            return None
        grammar = None
        if self.grammar is not None and (grammar := self.grammar.ahead(token)) is None:
            return None
        made = copy.copy(self)
        made.grammar = grammar
        made.counts = None if self.counts is None else self.counts.copy()
        return made

    @property
    def constrained(self) -> bool:
        """True if the grammar, where there is one, restricts the next token."""
        return self.thought is None or self.thought.constrained

    def bare(self) -> SamplingRow:
        """Return a copy with only temperature, truncation and random stream, for a draft model's sampling."""
        made = copy.copy(self)
        made.params = replace(self.params, logprobs=None)
        made.counts = made.grammar = made.thought = None
        made.edited = made.follows = False
        made.plain = made.params.greedy
        return made

    def uniform(self, index: int) -> float:
        """Return the uniform random number that samples completion token `index`."""
        return uniform(self._key, index)

    def banned(self, token_ids: Items[int], num_completion: int) -> Ids:
        """Return tokens that may not come next: ends before `min_tokens`, last tokens of bad words."""
        last = [
            word[-1]
            for word in self.params.bad_words
            if len(word) <= num_completion + 1
            and (len(word) == 1 or tuple(token_ids[1 - len(word) :]) == word[:-1])
        ]
        # Outside of the answer that a grammar demands, an end would leave the answer out.
        early = num_completion < self.params.min_tokens or (self.grammar is not None and not self.constrained)
        ends = self._eos if early else NO_IDS
        return np.concatenate([ends, np.array(last, np.int64)]) if last else ends


class TokenCounts:
    """Counts each token's occurrences incrementally.

    Attributes:
        ids: distinct tokens of prompt and completion.
        counts: occurrences in the completion; 0 for a token of the prompt only.
    """

    def __init__(self, prompt: Items[int]) -> None:
        distinct = sorted(set(prompt))
        self._slots = {token: slot for slot, token in enumerate(distinct)}
        room = 2 * len(distinct) + 64
        self._ids: Ids = np.zeros(room, np.int64)
        self._counts: Values = np.zeros(room, np.float32)
        self._ids[: len(distinct)] = distinct
        self._num_counted = len(prompt)

    def copy(self) -> TokenCounts:
        """Return an independent copy."""
        made = copy.copy(self)
        made._slots, made._ids, made._counts = dict(self._slots), self._ids.copy(), self._counts.copy()
        return made

    def follow(self, token_ids: Items[int]) -> None:
        """Count the tokens of `token_ids` (prompt and completion) that were added since the last call."""
        for token in token_ids[self._num_counted :]:
            slot = self._slots.setdefault(token, len(self._slots))
            if slot == len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._ids[slot] = token
            self._counts[slot] += 1
        self._num_counted = len(token_ids)

    @property
    def ids(self) -> Ids:
        return self._ids[: len(self._slots)]

    @property
    def counts(self) -> Values:
        return self._counts[: len(self._slots)]
