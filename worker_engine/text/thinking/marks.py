"""Thoughts between two marks, such as <think> and </think>."""

from __future__ import annotations

from functools import cached_property

from worker_engine.text.thinking.base import Phase, Thought
from worker_engine.text.tool_calls.parser import overlap


class MarkedThought(Thought):
    """A thought at the beginning of an answer; marks further on are part of the answer.

    With a grammar a thought can only be opened by the prompt or by a mark that is one token: a mark of
    several tokens could not be told from the answer's beginning.
    """

    _held = ""
    _num_pending = 0
    """Tokens of the gap whose character is incomplete."""

    @property
    def constrained(self) -> bool:
        return self.phase is not Phase.THINKING

    @property
    def opening(self) -> int | None:
        return self._opening if self.phase is Phase.UNDECIDED else None

    @cached_property
    def _opening(self) -> int | None:
        ids = self._tokenizer.encode(self._form.begin, add_special_tokens=False)
        return ids[0] if len(ids) == 1 else None

    def answers(self, token_id: int) -> bool:
        if self.phase is Phase.UNDECIDED:
            return token_id != self._opening
        return self.phase is not Phase.THINKING

    def _read(self, token_id: int) -> str:
        if self._answer is not None:
            return self._answer.append(token_id)
        if self.phase is Phase.UNDECIDED and self._params.grammar is not None and self.answers(token_id):
            return self._give_back()
        piece = self._raw.append(token_id)
        if self.phase is Phase.UNDECIDED:
            return self._decide(piece)
        if self.phase is Phase.THINKING:
            self.num_tokens += 1
            self._inside += 1
            return self._think(piece)
        self._num_pending = 0 if piece and not piece.strip("\n") else self._num_pending + 1
        return self._answer_with(self._num_pending) if piece.strip("\n") else ""

    def flush(self) -> str:
        text = self._give_back() if self.phase is Phase.UNDECIDED else ""
        if self.phase is Phase.THINKING:
            self._think(self._raw.flush())
            self._reasoning += self._held
            self._held = ""
        elif self._num_pending and self.phase is Phase.GAP:
            text = self._answer_with(self._num_pending)
        return text if self._answer is None else text + self._answer.flush()

    def _decide(self, piece: str) -> str:
        """Read on until the first text is the opening mark, or cannot become it."""
        begin = self._form.begin
        self._held += piece
        text = self._held.lstrip()
        if text.startswith(begin):
            self._held, self.phase = "", Phase.THINKING
            self.num_tokens = len(self._ids) - self._num_context
            return self._think(text.removeprefix(begin))
        return "" if begin.startswith(text) else self._give_back()

    def _think(self, piece: str) -> str:
        self._held += piece
        text, found, rest = self._held.partition(self._form.end)
        if not found:
            shown = len(text) - overlap(text, self._form.end)
            self._reasoning += text[:shown]
            self._held = text[shown:]
            return ""
        self._reasoning += text
        self._held, self.phase = "", Phase.GAP
        if self._params.grammar is None and not rest.strip("\n"):
            return ""
        # A grammar may want line feeds. Otherwise one token holds the mark's end and the answer's beginning.
        return self._answer_with(0) + rest

    def _give_back(self) -> str:
        """Return the text of tokens that turned out to be the answer's."""
        return self._answer_with(len(self._ids) - self._num_context)
