"""Completions that name an adapter for each prompt: one call for each prompt, and their common answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import orjson

from contracts.openai.kinds import prompts_of
from gateway.api.schema import Call
from gateway.api.sse import UsageView, event_data
from gateway.api.usage import Usage
from gateway.errors import GatewayError, UpstreamFailed, UpstreamRefused

DONE: Final = b"data: [DONE]\n\n"


def split(call: Call) -> list[Call]:
    """Return a call for each prompt, of the model in `call.adapters` at its place."""
    prompts = prompts_of(call.parameters["prompt"])
    return [
        # An empty text stays in a list: a backend may refuse it alone.
        Call(
            call.path,
            model,
            call.stream,
            UsageView.HIDDEN,
            {**call.parameters, "prompt": prompt or [prompt]},
            call.user,
        )
        for model, prompt in zip(call.adapters, prompts, strict=True)
    ]


@contextmanager
def naming_prompt(index: int) -> Iterator[None]:
    """Name prompt `index` in the message and `param` of a GatewayError that is raised inside."""
    try:
        yield
    except GatewayError as error:
        name_prompt(error, index)
        raise


def name_prompt(error: GatewayError, index: int) -> None:
    """Put the prompt's index into an error, and into `param` where that names the prompt or nothing."""
    if isinstance(error, UpstreamRefused):
        value = orjson.loads(error.body)
        fields = value["error"]
        fields["message"] = f"prompt[{index}]: {fields['message']}"
        fields["param"] = _param(fields.get("param"), index)
        error.body = orjson.dumps(value)
        return
    error.message = f"prompt[{index}]: {error.message}"
    error.args = (error.message,)
    error.param = _param(error.param, index)


def _param(name: str | None, index: int) -> str:
    return f"prompt[{index}]" if name in (None, "prompt") else str(name)


class MergedAnswer:
    """Joins the prompts' answers into one, with OpenAI's indices of a list of prompts.

    Choice `k` of prompt `i` has the index `i * n + k`, and `model` names the version that answered it.
    """

    def __init__(self, call: Call, request_id: str, created: int) -> None:
        """`created`: Unix seconds."""
        self._n = call.parameters.get("n", 1)
        self._view = call.view
        self._usages: dict[int, Usage] = {}
        self._head = {
            "id": f"cmpl-{request_id}",
            "object": "text_completion",
            "created": created,
            "model": call.model,
        }

    def follow(self, index: int, usage: Usage) -> None:
        """Count `usage`, which may still grow, as that of prompt `index`."""
        self._usages[index] = usage

    def choices(self, index: int, model: str, body: bytes) -> list[dict[str, Any]]:
        """Return the choices of a whole answer to prompt `index`. Raises UpstreamFailed."""
        try:
            return [self._choice(index, model, choice) for choice in orjson.loads(body)["choices"]]
        except (KeyError, TypeError, ValueError) as error:
            raise UpstreamFailed("The backend's answer is not a completion.") from error

    def body(self, choices: Sequence[Sequence[dict[str, Any]]]) -> bytes:
        """Return the whole answer from the choices of all prompts. Raises UpstreamFailed."""
        value = {**self._head, "choices": [choice for prompt in choices for choice in prompt]}
        try:
            return orjson.dumps({**value, "usage": self._usage()})
        except orjson.JSONEncodeError as error:
            raise UpstreamFailed("The backend sent a value that is nested too deeply.") from error

    def events(self, index: int, model: str, block: bytes) -> bytes:
        """Translate events of prompt `index`, without `[DONE]`. Raises ValueError."""
        data = event_data(block)
        if not data:
            return block  # a keep-alive comment
        try:
            events = [orjson.loads(item) for item in data if item != b"[DONE]"]
            return b"".join([self._event(index, model, event) for event in events])
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError("The backend sent an event that is not a completion's.") from error

    def end(self) -> bytes:
        """Return the stream's last events: the usage if the client wants it, and `[DONE]`."""
        if self._view is UsageView.HIDDEN or (usage := self._usage()) is None:
            return DONE
        return _sse({**self._head, "choices": [], "usage": usage}) + DONE

    def _event(self, index: int, model: str, value: dict[str, Any]) -> bytes:
        choices = [self._choice(index, model, choice) for choice in value.get("choices") or ()]
        if not choices:
            return b""
        event = {**self._head, "choices": choices}
        if self._view is not UsageView.HIDDEN:
            event["usage"] = self._usage() if self._view is UsageView.CONTINUOUS else None
        return _sse(event)

    def _choice(self, index: int, model: str, choice: dict[str, Any]) -> dict[str, Any]:
        return {**choice, "index": index * self._n + choice["index"], "model": model}

    def _usage(self) -> dict[str, Any] | None:
        """Return the sum of the answered prompts' usage; None if a backend reports none."""
        usages = self._usages.values()
        if not all(usage.reported for usage in usages):
            return None
        prompt = sum(usage.prompt_tokens for usage in usages)
        completion = sum(usage.completion_tokens for usage in usages)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(usage.cached_tokens for usage in usages)},
        }


def _sse(value: dict[str, Any]) -> bytes:
    try:
        return b"data: " + orjson.dumps(value) + b"\n\n"
    except orjson.JSONEncodeError as error:
        raise ValueError("a server-sent event is nested too deeply") from error
