"""Renders OpenAI's responses: whole bodies, and chunks of a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from contracts.prompt_progress import PROMPT_PROGRESS
from worker_engine.openai.choice import Part
from worker_engine.openai.usage import AnswerUsage
from worker_engine.protocol import TokenDelta

_NOTHING: Final[Mapping[str, Any]] = {}
DONE = b"data: [DONE]\n\n"


def event(value: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + orjson.dumps(value) + b"\n\n"


@dataclass(frozen=True, slots=True)
class Head:
    """Fields that every body and chunk of one response repeats.

    Attributes:
        id: the response's id.
        model: as the caller named it.
        created: Unix seconds.
        chat: chat completion rather than text completion.
        thinks: usage states the tokens of thoughts.
    """

    id: str
    model: str
    created: int
    chat: bool
    thinks: bool = False

    def fields(self, *, stream: bool) -> dict[str, Any]:
        kind = "text_completion" if not self.chat else "chat.completion" + (".chunk" if stream else "")
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


class Renderer:
    """Renders the response to one request, of one or several choices."""

    def __init__(
        self,
        head: Head,
        *,
        n: int = 1,
        continuous_usage: bool = False,
        prompts: Sequence[tuple[int, ...]] | None = None,
    ) -> None:
        """Prepare to render one response.

        Args:
            n: choices of a prompt.
            continuous_usage: end every chunk with `usage`, as its last key.
            prompts: token ids of the prompts, returned with those of the response; None for neither.
        """
        self._head, self._continuous, self._n, self._prompts = head, continuous_usage, n, prompts
        self._usage = AnswerUsage(n, thinks=head.thinks)
        self._begun: set[int] = set()

    def note(self, index: int, delta: TokenDelta) -> None:
        """Add the token counts of choice `index` to the usage rendered from now on."""
        self._usage.note(index, delta)

    def role(self, index: int) -> bytes:
        """Return the first event of a chat stream's choice."""
        delta = {"role": "assistant", "content": ""}
        prompt = {} if self._prompts is None else {"prompt_token_ids": self._prompts[0]}
        return self._chunk({"index": index, "delta": delta, "finish_reason": None}, prompt)

    def chunk(self, index: int, part: Part) -> bytes:
        """Return one event with what `part` adds."""
        choice: dict[str, Any] = {"index": index}
        if self._head.chat:
            content: dict[str, Any] = {"content": part.text} if part.text else {}
            thought = _thought(part.reasoning)
            choice["delta"] = thought | content | ({"tool_calls": part.calls} if part.calls else {})
        else:
            choice["text"] = part.text
        if part.logprobs is not None or not self._head.chat:
            choice["logprobs"] = part.logprobs
        return self._chunk(
            choice | self._token_ids(index, part.token_ids) | {"finish_reason": part.finish_reason}
        )

    def _token_ids(self, index: int, token_ids: tuple[int, ...]) -> dict[str, Any]:
        """Return the token ids of a choice; a completion's first part also has those of its prompt."""
        if self._prompts is None:
            return {}
        ids: dict[str, Any] = {"token_ids": token_ids}
        if not self._head.chat and index not in self._begun:
            ids["prompt_token_ids"] = self._prompts[index // self._n]
        self._begun.add(index)
        return ids

    def final_usage(self) -> bytes:
        """Return the event before [DONE] that `include_usage` requests."""
        return event(self._head.fields(stream=True) | {"choices": [], "usage": self._usage.to_dict()})

    def prompt_progress(self) -> bytes:
        """Return the comment that reports how much of the prompt has been processed."""
        return PROMPT_PROGRESS + orjson.dumps(self._usage.to_dict()) + b"\n\n"

    def whole(self, choices: Sequence[Sequence[Part]]) -> dict[str, Any]:
        """Return the body of a request that does not stream, from all parts of each choice."""
        rendered = [self._choice(index, parts) for index, parts in enumerate(choices)]
        body = self._head.fields(stream=False) | {"choices": rendered, "usage": self._usage.to_dict()}
        if self._prompts is not None and self._head.chat:
            body["prompt_token_ids"] = self._prompts[0]
        prompt_logprobs = choices[0][0].prompt_logprobs
        return (
            body
            if prompt_logprobs is None or not self._head.chat
            else body | {"prompt_logprobs": prompt_logprobs}
        )

    def _choice(self, index: int, parts: Sequence[Part]) -> dict[str, Any]:
        text = "".join(part.text for part in parts)
        calls = _join_calls([call for part in parts for call in part.calls])
        logprobs = _join_logprobs([part.logprobs for part in parts if part.logprobs is not None])
        choice: dict[str, Any] = {"index": index, "logprobs": logprobs}
        choice["finish_reason"] = parts[-1].finish_reason
        choice |= self._token_ids(
            index, tuple(item for part in parts if not part.empty for item in part.token_ids)
        )
        if not self._head.chat:
            prompt_logprobs = parts[0].prompt_logprobs
            return (
                choice
                | {"text": text}
                | ({} if prompt_logprobs is None else {"prompt_logprobs": prompt_logprobs})
            )
        thought = "".join(part.reasoning for part in parts)
        content = text if text or not (calls or thought) else None
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        message |= _thought(thought)
        return choice | {"message": message | ({"tool_calls": calls} if calls else {})}

    def _chunk(self, choice: dict[str, Any], more: Mapping[str, Any] = _NOTHING) -> bytes:
        value = self._head.fields(stream=True) | {"choices": [choice], **more}
        if self._continuous:
            value["usage"] = self._usage.to_dict()
        return event(value)


def _thought(text: str) -> dict[str, str]:
    """Return a thought's text under both names that clients read: vLLM renamed the first to the second."""
    return {"reasoning_content": text, "reasoning": text} if text else {}


def _join_calls(pieces: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    for piece in pieces:
        function = piece["function"]
        if "id" in piece:
            calls.append({"id": piece["id"], "type": "function", "function": dict(function)})
        else:
            calls[piece["index"]]["function"]["arguments"] += function["arguments"]
    return calls


def _join_logprobs(pieces: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    if not pieces:
        return None
    return {
        name: [item for piece in pieces for item in piece[name]] if isinstance(first, list) else first
        for name, first in pieces[0].items()
    }
