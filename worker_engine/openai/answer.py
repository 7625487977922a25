"""An answer as it grows: token deltas of its choices in, events or a whole body out."""

from __future__ import annotations

from typing import Any

from worker_engine.errors import RequestError
from worker_engine.openai.choice import Choice, Part
from worker_engine.openai.logprobs import LogprobsWriter
from worker_engine.openai.render import DONE, Head, Renderer, event
from worker_engine.openai.schema import CompletionRequest
from worker_engine.protocol import TokenDelta
from worker_engine.tokenizer import ChatTokenizer
from worker_engine.tool_calls.base import CallForm
from worker_engine.tool_calls.parser import CallParser


class Answer:
    """The answer to one request; its choices advance independently."""

    content_type = "text/event-stream"

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        body: CompletionRequest,
        prompt: tuple[int, ...],
        form: CallForm | None,
        head: Head,
    ) -> None:
        """With `form`, calls are looked for in the text."""
        self._body, self._chat = body, head.chat
        self._renderer = Renderer(head, continuous_usage=body.continuous_usage)
        self._echo = ""
        if body.echo:
            self._echo = body.prompt if isinstance(body.prompt, str) else tokenizer.decode(prompt)
        self._choices = [self._choice(tokenizer, index, form) for index in range(body.n)]
        self._parts: list[list[Part]] = [[] for _ in self._choices]

    def _choice(self, tokenizer: ChatTokenizer, index: int, form: CallForm | None) -> Choice:
        body = self._body
        writer = None
        if body.sampling.logprobs is not None:
            writer = LogprobsWriter(tokenizer, chat=self._chat)
        named = body.tools is not None and body.tools.named
        parser = None if form is None else CallParser(form)
        return Choice(index, parser, writer, calls_finish=not named)

    def take(self, index: int, delta: TokenDelta) -> bytes:
        """Takes one delta of choice `index`; returns the events that a stream sends for it, if any."""
        self._renderer.note(index, delta)
        part = self._choices[index].take(delta)
        parts = self._parts[index]
        events = b""
        if not parts and self._chat and self._body.stream:
            events = self._renderer.role(index)
        if not parts and self._echo:
            part = part.behind(self._echo)
        if self._body.stream:
            # Of a stream only the first part is kept, as a mark that it has begun.
            parts[:] = [part]
            return events if part.empty else events + self._renderer.chunk(index, part)
        parts.append(part)
        return b""

    def end(self) -> bytes:
        """The last events of a stream."""
        return (self._renderer.final_usage() if self._body.include_usage else b"") + DONE

    def fail(self, error: RequestError) -> bytes:
        """The last event of a stream that failed."""
        return event(error.to_dict())

    def whole(self) -> dict[str, Any]:
        """The body of a request that does not stream."""
        return self._renderer.whole(self._parts)
