"""Triton with its vLLM backend: requests of the repository's model `chat`, and its events.

The model's file is controlplane/deployments/containers/triton_chat.py; Triton's generate extension wraps its
texts in `text_input` and `text_output`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from gateway.api.schema import CHAT, Call
from gateway.backends.containers.base import DONE, Translator, not_served, one_prompt, requested
from gateway.backends.containers.event_lines import EventLines
from gateway.errors import UpstreamFailed

_FAMILY: Final = "Triton"
_SAMPLING: Final = frozenset(
    {
        "allowed_token_ids",
        "bad_words",
        "frequency_penalty",
        "ignore_eos",
        "include_stop_str_in_output",
        "max_tokens",
        "min_p",
        "min_tokens",
        "presence_penalty",
        "repetition_penalty",
        "seed",
        "skip_special_tokens",
        "stop",
        "stop_token_ids",
        "temperature",
        "top_k",
        "top_p",
    }
)
"""Parameters that vLLM's SamplingParams reads under the same name."""
_TEMPLATE: Final[tuple[str, ...]] = ("add_generation_prompt", "continue_final_message")
_COMPLETION_TOKENS: Final = 16


class TritonForm:
    """See `ContainerForm`."""

    def body(self, call: Call, adapter: str) -> dict[str, Any]:
        given = requested(call)
        asked: dict[str, Any] = {}
        if call.path == CHAT:
            asked["messages"] = given.pop("messages")
            asked["template"] = _template(given)
            given["max_tokens"] = given.pop("max_completion_tokens", given.get("max_tokens"))
            if given["max_tokens"] is None:
                del given["max_tokens"]
        else:
            asked["prompt"] = one_prompt(given, _FAMILY)
            given.setdefault("max_tokens", _COMPLETION_TOKENS)
        if unknown := sorted(given.keys() - _SAMPLING):
            raise not_served(unknown[0], _FAMILY)
        if isinstance(given.get("stop"), str):
            given["stop"] = [given["stop"]]
        asked["sampling"] = {**given, "lora_name": adapter} if adapter else given
        return {"text_input": orjson.dumps(asked).decode()}

    def translator(self, call: Call, request_id: str, model: str) -> Translator:
        return TritonTranslator(request_id, model, chat=call.path == CHAT)


def _template(given: dict[str, Any]) -> dict[str, Any]:
    """Take the chat template's flags out of the parameters."""
    found = {name: given.pop(name) for name in _TEMPLATE if name in given}
    # As at vLLM, a message that goes on has no beginning of an answer.
    return {**found, "add_generation_prompt": False} if found.get("continue_final_message") else found


class TritonTranslator:
    """Translates one stream; every event counts the tokens so far."""

    def __init__(self, request_id: str, model: str, *, chat: bool) -> None:
        self._head = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{request_id}",
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        self._chat, self._first, self._finished = chat, True, False
        self._lines = EventLines()
        self._failed = False

    def feed(self, data: bytes) -> bytes:
        return self._translate(self._lines.feed(data))

    def end(self) -> bytes:
        last = self._translate(self._lines.end())
        if self._failed or not self._finished:
            raise UpstreamFailed("The backend ended its answer before it was complete.")
        return last + DONE

    def _translate(self, values: Sequence[Any]) -> bytes:
        """Return the events before an error, which are billed; the error is raised afterwards."""
        if self._failed:
            raise UpstreamFailed("The backend failed in the middle of its answer.")
        events = []
        for value in values:
            if value is None or "error" in value:
                # Triton answers an error at the beginning with a status of its own.
                self._failed = True
                break
            events.append(b"data: " + orjson.dumps(self._chunk(value)) + b"\n\n")
        return b"".join(events)

    def _chunk(self, value: Mapping[str, Any]) -> dict[str, Any]:
        try:
            part = orjson.loads(value["text_output"])
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
