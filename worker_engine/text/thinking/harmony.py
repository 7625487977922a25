"""gpt-oss' harmony format: an answer of messages, each with a channel in its header.

    <|channel|>analysis<|message|>thought<|end|><|start|>assistant<|channel|>final<|message|>answer<|return|>

The prompt ends with `<|start|>assistant`. Marks are special tokens, so single ids decide. What is said on the
channels `final` and `commentary` is the answer, as harmony's guide wants preambles of calls shown.
"""

from __future__ import annotations

from typing import Final

from worker_engine.text.thinking.base import Phase, Thought

CHANNEL: Final = "<|channel|>"
MESSAGE: Final = "<|message|>"
END: Final = "<|end|>"
START: Final = "<|start|>"
THINKING_CHANNEL: Final = "analysis"


class HarmonyThought(Thought):
    """An answer's messages: those on the channel `analysis` are the thought.

    Headers count as the thought's tokens from the first thought on; those before it are the answer's.
    """

    _header: str | None = ""
    """Text of the header that is being read; None in a message."""
    _num_pending = 0

    @property
    def constrained(self) -> bool:
        return self.phase is Phase.ANSWERING

    @property
    def _may_close(self) -> bool:
        return self.phase is Phase.THINKING and (self._header is None or self._num_closing > 0)

    def answers(self, token_id: int) -> bool:
        return self.phase is Phase.ANSWERING

    def _read(self, token_id: int) -> str:
        piece = self._raw.append(token_id)
        if self._header is not None:
            self._num_pending += 1
            self._header += piece
            if self._header.endswith(MESSAGE):
                return self._begin_message(self._header)
            return ""
        if piece.endswith(END):
            return self._end_message(piece.removesuffix(END))
        if self.phase is Phase.ANSWERING:
            return self._answer_with(1)
        self.num_tokens += 1
        self._inside += 1
        self._reasoning += piece
        return ""

    def flush(self) -> str:
        if self.phase is Phase.THINKING and self._header is None:
            self._reasoning += self._raw.flush()
        return "" if self._answer is None else self._answer.flush()

    def _begin_message(self, header: str) -> str:
        _, _, channel = header.rpartition(CHANNEL)
        thinks = channel.startswith(THINKING_CHANNEL)
        if thinks or self.num_tokens:
            self.num_tokens += self._num_pending
        self._header, self._num_pending = None, 0
        if thinks:
            self.phase = Phase.THINKING
            return ""
        self._num_closing = 0
        return self._answer_with(0)

    def _end_message(self, rest: str) -> str:
        self._header = ""
        if self.phase is Phase.THINKING:
            self._reasoning += rest
            self.num_tokens += 1
            return ""
        # Another message may follow the preamble of a call.
        self.phase = Phase.THINKING if self.num_tokens else Phase.UNDECIDED
        self._num_pending = 1
        return ""
