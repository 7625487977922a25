"""The contract of a container's form: how it wants a request, and how its answer becomes OpenAI's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from contracts.openai import parameters as openai
from gateway.api.schema import CHAT, Call
from gateway.errors import BadRequest

DONE: Final = b"data: [DONE]\n\n"
_NEUTRAL: Final[Mapping[str, Callable[[Any], bool]]] = {
    "n": lambda value: value == 1,
    "best_of": lambda value: value == 1,
    "min_tokens": lambda value: value == 0,
    "top_k": lambda value: value in (-1, 0),
    "response_format": lambda value: isinstance(value, dict) and value.get("type") == "text",
    "tool_choice": lambda value: value in ("none", "auto"),
    "reasoning_effort": lambda value: value == "none",
}
"""Values that ask for nothing by themselves, of parameters whose default in contracts.openai is None."""


class Translator(Protocol):
    """Translates one answer's bytes, split anywhere, to OpenAI's server-sent events."""

    def feed(self, data: bytes) -> bytes:
        """Return the events that `data` completes. Raises GatewayError for the container's own error."""

    def end(self) -> bytes:
        """Return the last events. Raises UpstreamFailed if the answer is not complete."""


class ContainerForm(Protocol):
    """One container family's form. All of its requests stream, so that usage is exact."""

    def body(self, call: Call, adapter: str) -> dict[str, Any]:
        """Return the body of /invocations.

        Args:
            adapter: engine name of the adapter; "" for the base model.

        Raises:
            BadRequest: the container does not serve a parameter; names it.
        """

    def translator(self, call: Call, request_id: str, model: str) -> Translator:
        """Return the translator of the answer; `model` is the model name in every event."""


def requested(call: Call) -> dict[str, Any]:
    """Return the parameters that ask for something: without nulls and values that change nothing."""
    kinds = openai.CHAT if call.path == CHAT else openai.COMPLETIONS
    found = {}
    for name, value in call.parameters.items():
        kind = kinds.get(name)
        neutral = value is None or (kind is not None and value == kind.default)
        if not neutral and not (name in _NEUTRAL and _NEUTRAL[name](value)) and value not in ([], {}):
            found[name] = value
    return found


def not_served(name: str, family: str, remedy: str = "Leave it out.") -> BadRequest:
    """Return the refusal of a parameter that the container would ignore or misread."""
    return BadRequest(
        f"{name} is not served by this model's copies, which run {family}. {remedy}", param=name
    )


def one_prompt(given: dict[str, Any], family: str) -> str:
    """Take the prompt out of the parameters. Raises BadRequest unless it is a single text."""
    prompt = given.pop("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        (prompt,) = prompt
    if not isinstance(prompt, str):
        raise BadRequest(
            f"prompt must be one text: this model's copies, which run {family}, take neither several nor "
            "token ids.",
            param="prompt",
        )
    return prompt
