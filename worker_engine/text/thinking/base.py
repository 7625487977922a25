"""The thought before an answer: how a family of models marks it, and one completion's state in it."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from worker_engine.protocol import SamplingParams, ThoughtStart
from worker_engine.text.tokenizer import ChatTokenizer, Detokenizer

CONTEXT: Final = 5
"""Tokens of the prompt that a thought's text is decoded after."""


@dataclass(frozen=True, slots=True)
class ThoughtForm:
    """One family's way of marking a thought.

    Attributes:
        name: as the `reasoning_parser` setting calls it.
        begin: the text that opens a thought.
        end: the text that closes it; forced when a token budget is spent.
        implied: an answer begins inside the thought although neither prompt nor model wrote `begin`.
        channels: the answer consists of harmony's messages, each of a channel.
    """

    name: str
    begin: str
    end: str
    implied: bool = False
    channels: bool = False

    def start(self, prompt: str) -> ThoughtStart | None:
        """Return how an answer to a rendered prompt begins; None where the prompt closed the thought."""
        text = prompt.rstrip()
        if text.endswith(self.end):
            return None
        return ThoughtStart(opened=not self.channels and (self.implied or text.endswith(self.begin)))

    def resume(self, text: str) -> ThoughtStart | None:
        """Return how an answer that goes on with `text` begins; None where its thought is over."""
        opened = not self.channels and text.rfind(self.begin) > text.rfind(self.end)
        return ThoughtStart(opened=True) if opened else None


class Phase(enum.Enum):
    """Where the next token of a completion belongs."""

    UNDECIDED = "undecided"
    """To the answer, unless it turns out to open a thought."""
    THINKING = "thinking"
    GAP = "gap"
    """Between thought and answer: line feeds are left out."""
    ANSWERING = "answering"


class Thought(ABC):
    """One completion's tokens, split into thought and answer.

    It takes the detokenizer's place in a sequence: `append` returns text of the answer only, and the answer's
    stop strings begin with the answer. The thought's text waits in `take`.

    Attributes:
        phase: where the next token belongs.
        num_tokens: tokens of the thought so far, with the marks that the model wrote around it.
        budget: most tokens between the marks; None for no bound.
    """

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        form: ThoughtForm,
        params: SamplingParams,
        prompt: Sequence[int],
        start: ThoughtStart,
    ) -> None:
        self.phase = Phase.THINKING if start.opened else Phase.UNDECIDED
        self.num_tokens, self.budget = 0, start.budget
        self._form, self._tokenizer, self._params = form, tokenizer, params
        self._ids = list(prompt[-CONTEXT:])
        self._num_context = len(self._ids)
        self._raw = Detokenizer(tokenizer, skip_special_tokens=False, context=self._ids)
        self._closing = tuple(tokenizer.encode(form.end, add_special_tokens=False))
        self._num_closing = self._inside = 0
        self._reasoning = ""
        self._answer: Detokenizer | None = None

    @property
    def active(self) -> bool:
        """True while the next token may belong to the thought."""
        return self.phase in (Phase.UNDECIDED, Phase.THINKING)

    @property
    def answered(self) -> bool:
        """True if the last token was the answer's."""
        return self.phase is Phase.ANSWERING

    @property
    def stopped(self) -> bool:
        """True once a stop string of the answer is complete."""
        return self._answer is not None and self._answer.stopped

    @property
    def forced(self) -> int | None:
        """The token that must come next, since the budget is spent; None for any."""
        if self.budget is None or self._inside < self.budget or not self._may_close:
            return None
        return self._closing[self._num_closing % len(self._closing)]

    @property
    def _may_close(self) -> bool:
        return self.phase is Phase.THINKING

    @property
    @abstractmethod
    def constrained(self) -> bool:
        """True if the answer's grammar restricts the next token."""

    @property
    def opening(self) -> int | None:
        """The token that may come although the grammar forbids it, since it opens a thought."""
        return None

    @abstractmethod
    def answers(self, token_id: int) -> bool:
        """Return True if the next token, with this id, is one that the answer's grammar has to accept."""

    @abstractmethod
    def _read(self, token_id: int) -> str:
        """Take a token, the last of `_ids`. Return text of the answer."""

    def append(self, token_id: int) -> str:
        """Take the next token. Return text of the answer that may be sent now."""
        if self.forced is not None:
            self._num_closing += 1
        self._ids.append(token_id)
        return self._read(token_id)

    def end(self) -> None:
        """Count the end-of-sequence token, which `append` does not get."""
        if self.phase is Phase.THINKING:
            self.num_tokens += 1

    @abstractmethod
    def flush(self) -> str:
        """Return the rest of the answer's text when no token follows."""

    def take(self) -> str:
        """Return the thought's text since the last call."""
        text, self._reasoning = self._reasoning, ""
        return text

    def _answer_with(self, num_tokens: int) -> str:
        """Turn to the answer, which begins with the last `num_tokens` tokens; return their text."""
        self.phase, at = Phase.ANSWERING, len(self._ids) - num_tokens
        if self._answer is None:
            self._answer = Detokenizer.for_completion(
                self._tokenizer, self._params, self._ids[:at], made=at - self._num_context
            )
        return "".join([self._answer.append(token) for token in self._ids[at:]])
