"""One choice of an answer as it grows: text, tool calls and log probabilities out of token deltas."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from worker_engine.openai.logprobs import LogprobsWriter, PromptWriter
from worker_engine.protocol import FinishReason, TokenDelta, TokenLogprobs
from worker_engine.text.tool_calls.parser import CallDelta, CallParser, ParsedDelta


@dataclass(frozen=True, slots=True)
class Part:
    """A delta's addition to a choice, in OpenAI's words.

    Attributes:
        token_ids: of an empty part they are repeated by the next one.
        reasoning: text of the thought.
    """

    text: str = ""
    calls: tuple[dict[str, Any], ...] = ()
    logprobs: dict[str, Any] | None = None
    finish_reason: str | None = None
    prompt_logprobs: list[dict[str, Any] | None] | None = None
    token_ids: tuple[int, ...] = ()
    reasoning: str = ""

    @property
    def empty(self) -> bool:
        told = self.logprobs is not None and any(self.logprobs.values())
        return not (self.text or self.reasoning or self.calls or self.finish_reason or told)


@dataclass(frozen=True, slots=True)
class Echo:
    """The prompt as `echo` shows it."""

    text: str
    token_ids: tuple[int, ...]


@dataclass(slots=True)
class Choice:
    """Choice number `index`.

    Attributes:
        parser: finds tool calls in the text, when there are tools.
        logprobs: writes them, when they were asked for.
        calls_finish: a finish by calls is called `tool_calls`; where the caller named the function, `stop`.
        echo: the prompt and its text, to be told before the completion's.
        prompt: writes its log probabilities as vLLM tells them, when they were asked for.
        shows_thought: parts have the thought's text.
    """

    index: int
    parser: CallParser | None = None
    logprobs: LogprobsWriter | None = None
    calls_finish: bool = True
    echo: Echo | None = None
    prompt: PromptWriter | None = None
    shows_thought: bool = True
    _pending_ids: tuple[int, ...] = ()
    _undecided: tuple[TokenLogprobs, ...] = ()
    _reasoning_tokens: int = 0

    def take(self, delta: TokenDelta) -> Part:
        """Turns a delta into what may be shown of it; empty while text is held back."""
        shown = ""
        if self.echo is not None:
            shown, told, self.echo = self.echo.text, self.echo.token_ids, None
            if self.logprobs is not None and delta.prompt_logprobs is not None:
                self.logprobs.add_prompt(told, shown, delta.prompt_logprobs)
        if self.logprobs is not None:
            self.logprobs.add(self._of_answer(delta))
        finished = delta.finish_reason is not None
        parsed = ParsedDelta(delta.text) if self.parser is None else self.parser.feed(delta.text)
        if self.parser is not None and finished:
            rest = self.parser.finish(truncated=delta.finish_reason is FinishReason.LENGTH)
            parsed = ParsedDelta(parsed.content + rest.content, parsed.calls + rest.calls)
        logprobs = None
        if self.logprobs is not None:
            everything = self.parser is not None or delta.finish_reason is FinishReason.LENGTH
            logprobs = self.logprobs.release(shown + delta.text, everything=everything)
        token_ids = self._pending_ids + delta.token_ids
        part = Part(
            shown + parsed.content,
            tuple(self._call(call) for call in parsed.calls),
            logprobs,
            self._finish(delta),
            self.prompt.tell(delta.prompt_logprobs) if self.prompt is not None else None,
            token_ids,
            delta.reasoning if self.shows_thought else "",
        )
        # The ids of tokens whose text is held back go with the next part that is sent.
        self._pending_ids = token_ids if part.empty else ()
        return part

    def _of_answer(self, delta: TokenDelta) -> tuple[TokenLogprobs, ...]:
        """Return the log probabilities of the answer's tokens; a thought's are not told.

        Those of tokens that may open a thought are held back until it is known.
        """
        held = self._undecided if delta.reasoning_tokens == self._reasoning_tokens else ()
        self._reasoning_tokens = delta.reasoning_tokens
        in_thought = delta.thinking and delta.reasoning_tokens > 0
        found = () if in_thought else held + delta.logprobs
        self._undecided = found if delta.thinking and delta.finish_reason is None else ()
        return () if self._undecided else found

    def _finish(self, delta: TokenDelta) -> str | None:
        if delta.finish_reason is None:
            return None
        called = self.parser is not None and self.parser.num_calls > 0 and self.calls_finish
        stopped = delta.finish_reason is FinishReason.STOP
        return "tool_calls" if called and stopped else str(delta.finish_reason)

    def _call(self, call: CallDelta) -> dict[str, Any]:
        function = {"arguments": call.arguments}
        if call.name is None:
            return {"index": call.index, "function": function}
        # Nine letters and digits are what Mistral's templates demand of an id.
        return {
            "index": call.index,
            "id": uuid.uuid4().hex[:9],
            "type": "function",
            "function": {"name": call.name} | function,
        }
