"""An answer as it grows: token deltas of its choices in, events or a whole body out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from worker_engine.errors import RequestError
from worker_engine.openai.choice import Choice, Echo, Part
from worker_engine.openai.logprobs import LogprobsWriter, PromptWriter
from worker_engine.openai.render import DONE, Head, Renderer, event
from worker_engine.openai.schema import CompletionRequest, Prompt
from worker_engine.protocol import TokenDelta
from worker_engine.text.tokenizer import ChatTokenizer
from worker_engine.text.tool_calls.base import CallForm
from worker_engine.text.tool_calls.parser import CallParser


class Answer:
    """The answer to one request; its choices advance independently."""

    content_type = "text/event-stream"

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        body: CompletionRequest,
        prompts: Sequence[tuple[int, ...]],
        form: CallForm | None,
        head: Head,
    ) -> None:
        """With `form`, calls are looked for in the text. `prompts` each have `body.n` choices, in order."""
        self._body, self._chat = body, head.chat
        self._renderer = Renderer(
            head,
            n=body.n,
            continuous_usage=body.continuous_usage,
            prompts=prompts if body.return_token_ids else None,
        )
        echoes: list[Echo | None] = [None for _ in prompts]
        if body.echo:
            texts = body.prompts if body.truncate is None else prompts
            echoes = [_echo(tokenizer, *both) for both in zip(texts, prompts, strict=True)]
        self._choices = [
            self._choice(tokenizer, index * body.n + choice, form, echo)
            for index, echo in enumerate(echoes)
            for choice in range(body.n)
        ]
        self._parts: list[list[Part]] = [[] for _ in self._choices]

    def _choice(
        self, tokenizer: ChatTokenizer, index: int, form: CallForm | None, echo: Echo | None
    ) -> Choice:
        body = self._body
        writer = None
        if body.sampling.logprobs is not None:
            writer = LogprobsWriter(tokenizer, body.sampling.logprobs, chat=self._chat)
        named = body.tools is not None and body.tools.named
        forced = body.tools is not None and body.tools.required
        parser = None if form is None else CallParser(form, forced=forced)
        told = None
        if body.prompt_logprobs is not None:
            told = PromptWriter(tokenizer, body.prompt_logprobs)
        return Choice(
            index,
            parser,
            writer,
            calls_finish=not named,
            echo=echo,
            prompt=told,
            shows_thought=body.thinking is None or body.thinking.include,
        )

    def take(self, index: int, delta: TokenDelta) -> bytes:
        """Takes one delta of choice `index`; returns the events that a stream sends for it, if any."""
        self._renderer.note(index, delta)
        if delta.reading:
            # Sent only before the first event, so readers need not look for it later.
            return b"" if any(self._parts) else self._renderer.prompt_progress()
        part = self._choices[index].take(delta)
        parts = self._parts[index]
        events = b""
        if not parts and self._chat and self._body.stream:
            events = self._renderer.role(index)
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


def _echo(tokenizer: ChatTokenizer, prompt: Prompt, ids: tuple[int, ...]) -> Echo:
    return Echo(prompt if isinstance(prompt, str) else tokenizer.decode(ids), ids)
