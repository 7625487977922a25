"""Translates the events of the models that deployments write for Triton and PyTorch.

Each event is one of `text`, `finish_reason`, `prompt_tokens` and `completion_tokens`, which count the
tokens so far; the events' envelopes differ.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import orjson

from gateway.api.schema import CHAT, Call
from gateway.backends.containers.base import DONE, not_served, one_prompt, requested
from gateway.backends.containers.event_lines import EventLines
from gateway.errors import GatewayError, UpstreamFailed

_TEMPLATE: Final[tuple[str, ...]] = ("add_generation_prompt", "continue_final_message")
_COMPLETION_TOKENS: Final = 16


def question(call: Call, family: str, sampling: frozenset[str]) -> dict[str, Any]:
    """Return the request: `messages` with `template`, or `prompt`, and `sampling`.

    Args:
        sampling: parameters that the container reads under the same name.

    Raises:
        BadRequest: the container does not serve a parameter; names it.
    """
    given = requested(call)
    asked: dict[str, Any] = {}
    if call.path == CHAT:
        asked["messages"] = given.pop("messages")
        asked["template"] = _template(given)
        given["max_tokens"] = given.pop("max_completion_tokens", given.get("max_tokens"))
        if given["max_tokens"] is None:
            del given["max_tokens"]
    else:
        asked["prompt"] = one_prompt(given, family)
        given.setdefault("max_tokens", _COMPLETION_TOKENS)
    if unknown := sorted(given.keys() - sampling):
        raise not_served(unknown[0], family)
    if isinstance(given.get("stop"), str):
        given["stop"] = [given["stop"]]
    return {**asked, "sampling": given}


def _template(given: dict[str, Any]) -> dict[str, Any]:
    """Take the chat template's flags out of the parameters."""
    found = {name: given.pop(name) for name in _TEMPLATE if name in given}
    # As at vLLM, a message that goes on has no beginning of an answer.
    return {**found, "add_generation_prompt": False} if found.get("continue_final_message") else found


class PartTranslator:
    """Translates one stream.

    Args:
        part: takes the part out of an event; TypeError, KeyError or ValueError if there is none.
        failure: the client's error for an event with `error`.
    """

    def __init__(
        self,
        request_id: str,
        model: str,
        *,
        chat: bool,
        part: Callable[[Mapping[str, Any]], Mapping[str, Any]],
        failure: Callable[[Mapping[str, Any]], GatewayError],
    ) -> None:
        self._head = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{request_id}",
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        self._chat, self._first, self._finished = chat, True, False
        self._part, self._failure_of = part, failure
        self._lines = EventLines()
        self._failure: GatewayError | None = None

    def feed(self, data: bytes) -> bytes:
        return self._translate(self._lines.feed(data))

    def end(self) -> bytes:
        last = self._translate(self._lines.end())
        if self._failure is not None:
            raise self._failure
        if not self._finished:
            raise UpstreamFailed("The backend ended its answer before it was complete.")
        return last + DONE

    def _translate(self, values: Sequence[Any]) -> bytes:
        """Return the events before an error, which are billed; the error is raised afterwards."""
        if self._failure is not None:
            raise self._failure
        events = []
        for value in values:
            if value is None or "error" in value:
                self._failure = self._failure_of(value or {})
                break
            events.append(b"data: " + orjson.dumps(self._chunk(value)) + b"\n\n")
        if self._failure is not None and not events:
            raise self._failure
        return b"".join(events)

    def _chunk(self, value: Mapping[str, Any]) -> dict[str, Any]:
        try:
            part = self._part(value)
            text, reason = str(part["text"]), part["finish_reason"]
            prompt, completion = int(part["prompt_tokens"]), int(part["completion_tokens"])
        except (KeyError, TypeError, ValueError) as error:
            raise UpstreamFailed("The backend sent an event that is no part of an answer.") from error
        piece: dict[str, Any] = {"text": text}
        if self._chat:
            piece = {"delta": {**({"role": "assistant"} if self._first else {}), "content": text}}
        self._first, self._finished = False, reason is not None
        choice = {"index": 0, **piece, "logprobs": None, "finish_reason": reason}
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }
        return {**self._head, "choices": [choice], "usage": usage}
