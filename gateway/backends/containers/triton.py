"""Triton with its vLLM backend: requests of the repository's model `chat`, and its events.

The model's file is controlplane/deployments/containers/triton_chat.py; Triton's generate extension wraps its
texts in `text_input` and `text_output`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from gateway.api.schema import CHAT, Call
from gateway.backends.containers.base import Translator
from gateway.backends.containers.parts import PartTranslator, question
from gateway.errors import GatewayError, UpstreamFailed

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


class TritonForm:
    """See `ContainerForm`."""

    def body(self, call: Call, adapter: str) -> dict[str, Any]:
        asked = question(call, "Triton", _SAMPLING)
        if adapter:
            asked["sampling"]["lora_name"] = adapter
        return {"text_input": orjson.dumps(asked).decode()}

    def translator(self, call: Call, request_id: str, model: str) -> Translator:
        chat = call.path == CHAT
        return PartTranslator(request_id, model, chat=chat, part=_part, failure=_failure)


def _part(value: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = orjson.loads(value["text_output"])
    return found


def _failure(value: Mapping[str, Any]) -> GatewayError:
    """Triton answers an error at the beginning with a status of its own."""
    return UpstreamFailed("The backend failed in the middle of its answer.")
