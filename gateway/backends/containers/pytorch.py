"""PyTorch's images with TorchServe: requests of the handler that a deployment writes, and its events.

The handler's file is controlplane/deployments/containers/pytorch_inference.py. It answers 200 before it
checks a request: errors arrive as events.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.api.schema import CHAT, Call
from gateway.backends.containers.base import Translator
from gateway.backends.containers.parts import PartTranslator, question
from gateway.backends.sagemaker_errors import adapter_missing
from gateway.backends.upstream import refused
from gateway.errors import GatewayError, UpstreamFailed

_SAMPLING: Final = frozenset(
    {
        "ignore_eos",
        "max_tokens",
        "min_p",
        "repetition_penalty",
        "seed",
        "stop",
        "stop_token_ids",
        "temperature",
        "top_k",
        "top_p",
    }
)
"""Parameters that the handler reads under the same name."""


class PyTorchForm:
    """See `ContainerForm`."""

    def body(self, call: Call, adapter: str) -> dict[str, Any]:
        asked = question(call, "PyTorch's image", _SAMPLING)
        return {**asked, "adapter": adapter} if adapter else asked

    def translator(self, call: Call, request_id: str, model: str) -> Translator:
        chat = call.path == CHAT
        return PartTranslator(request_id, model, chat=chat, part=lambda value: value, failure=_failure)


def _failure(value: Mapping[str, Any]) -> GatewayError:
    error = value.get("error")
    status = error.get("status") if isinstance(error, dict) else None
    if status == 404:
        return adapter_missing()
    if isinstance(error, dict) and status == 400:
        return refused(400, {"message": str(error.get("message"))})
    return UpstreamFailed("The backend failed on this request.")
