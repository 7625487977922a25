"""The API's request parameters and their bounds.

This is an allow-list: a parameter that is not named here is refused. So clients cannot reach anything else
that a backend happens to understand, such as a cache salt, an adapter, a template or a URL.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from contracts.openai import bounds
from gateway.api.bounds import (
    Check,
    boolean,
    integer,
    list_of,
    logit_bias,
    messages,
    number,
    one_of,
    prompts,
    schema,
    stop,
    stream_options,
)
from gateway.api.prompts import MAX_INPUTS, MAX_SEQUENCES, estimate_tokens, num_prompts
from gateway.api.sse import UsageView
from gateway.errors import BadRequest, MissingParameter, UnknownParameter

MAX_PARTS: Final = 200_000
"""Most lists, objects and strings of a body: each costs a hundred times its one or two bytes."""


def _integers(table: Mapping[str, bounds.IntegerBounds]) -> dict[str, Check]:
    return {name: integer(limits.low, limits.high) for name, limits in table.items()}


_COMMON: Final[Mapping[str, Check]] = {
    **{name: number(limits.low, limits.high) for name, limits in bounds.NUMBERS.items()},
    **_integers(bounds.INTEGERS),
    **{name: list_of(str if name == "bad_words" else int, size) for name, size in bounds.LIST_SIZES.items()},
    "stream": boolean,
    "stream_options": stream_options,
    "stop": stop,
    "ignore_eos": boolean,
    "logit_bias": logit_bias,
    "include_stop_str_in_output": boolean,
    "skip_special_tokens": boolean,
    "structured_outputs": schema,
    "guided_json": schema,
    "guided_regex": schema,
    "guided_choice": schema,
    "guided_grammar": schema,
    "response_format": schema,
    "return_token_ids": boolean,
}
CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
EMBEDDINGS: Final = "/v1/embeddings"
PARAMETERS: Final[Mapping[str, Mapping[str, Check]]] = {
    CHAT: {
        **_COMMON,
        **_integers(bounds.CHAT_INTEGERS),
        "messages": messages,
        "logprobs": boolean,
        "tools": schema,
        "tool_choice": schema,
        "parallel_tool_calls": boolean,
        "add_generation_prompt": boolean,
        "continue_final_message": boolean,
    },
    COMPLETIONS: {
        **_COMMON,
        **_integers(bounds.COMPLETION_INTEGERS),
        "prompt": prompts(bounds.MAX_PROMPTS),
        "echo": boolean,
        "suffix": schema,
        "best_of": integer(1, 1),
    },
    EMBEDDINGS: {
        "input": prompts(MAX_INPUTS),
        "encoding_format": one_of("float", "base64"),
        "dimensions": integer(1, 1 << 16),
        "truncate_prompt_tokens": integer(-1, bounds.MAX_TOKENS),
    },
}
IGNORED: Final = frozenset(
    {
        "user", "metadata", "store", "service_tier", "safety_identifier",
        "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options",
    }
)  # fmt: skip
"""OpenAI's parameters that clients send by habit and that have no effect here; they are not passed on."""
_OURS: Final = frozenset({"adapter", "adapters", "cache_salt", "tenant", "request_id", "lora_request"})
Dropped = Callable[[str], Collection[str]]
"""Returns the parameters to remove from a request, by the model that the request names."""
_REQUIRED: Final = {CHAT: "messages", COMPLETIONS: "prompt", EMBEDDINGS: "input"}


@dataclass(slots=True)
class Call:
    """A checked request.

    Attributes:
        path: the backend's path: CHAT, COMPLETIONS or EMBEDDINGS.
        stream: True if the client wants events.
        parameters: parameters to pass on, without model, stream and stream_options, which the gateway sets.
        view: the usage that a streaming client sees.
        user: the caller's end user, if it is stated; not passed on.
    """

    path: str
    model: str
    stream: bool
    view: UsageView
    parameters: dict[str, Any]
    user: str = ""
    _prompt_estimate: int | None = None

    @property
    def prompt_estimate(self) -> int:
        """Prompt tokens by `estimate_tokens`, computed once."""
        if self._prompt_estimate is None:
            self._prompt_estimate = estimate_tokens(self.parameters)
        return self._prompt_estimate

    @property
    def streams(self) -> bool:
        """True if the backend is asked for events.

        Answers that the client wants whole are included, so that usage is known when the client hangs up.
        Requests for log probabilities of the prompt are the exception: vLLM refuses to stream them.
        """
        return self.stream or (self.path != EMBEDDINGS and "prompt_logprobs" not in self.parameters)


def drop_nothing(model: str) -> Collection[str]:
    """Drop no parameters, so that every one is checked."""
    return ()


def parse(path: str, body: bytes, dropped: Dropped = drop_nothing) -> Call:
    """Check a request body for `path`, without the parameters that `dropped` names for its model.

    Raises:
        BadRequest: not a JSON object, or a malformed parameter, named in the message.
        MissingParameter: the model or the prompt is missing.
        UnknownParameter: a parameter that is not on the list.
    """
    model, value = parse_object(body, dropped)
    parameters = check_parameters(PARAMETERS[path], _REQUIRED[path], value)
    _refuse_conflicts(path, parameters)
    stream = bool(parameters.pop("stream", False))
    options = parameters.pop("stream_options", None)
    if options is not None and not stream:
        raise BadRequest("stream_options is only allowed with stream: true.", param="stream_options")
    return Call(path, model, stream, _view(options or {}), parameters, user_of(value))


def parse_object(body: bytes, dropped: Dropped) -> tuple[str, dict[str, Any]]:
    """Return the model's name and the remaining parameters. Raises BadRequest, MissingParameter."""
    if len(body) > MAX_PARTS and _too_many_parts(body):
        raise BadRequest(
            f"The body holds more than {MAX_PARTS} lists, objects and strings. Send less of them."
        )
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"The body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadRequest("The body must be a JSON object.")
    model = value.pop("model", None)
    if model is None:
        raise MissingParameter("model is required.", param="model")
    if not isinstance(model, str) or not model:
        raise BadRequest("model must be a non-empty string.", param="model")
    for name in dropped(model):
        value.pop(name, None)
    return model, value


def user_of(value: Mapping[str, Any]) -> str:
    """Return the caller's end user, or "" if it is not stated."""
    user = value.get("user") or value.get("safety_identifier")
    return user if isinstance(user, str) else ""


def check_parameters(checks: Mapping[str, Check], required: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that are not null, each within its bounds.

    Raises:
        BadRequest: a parameter is out of bounds.
        MissingParameter: `required` is missing.
        UnknownParameter: a parameter is not on the list.
    """
    parameters: dict[str, Any] = {}
    for name, item in value.items():
        if item is None:
            continue  # clients send null for parameters that they do not use
        check = checks.get(name)
        if check is None:
            if name not in IGNORED:
                raise _unknown_parameter(name)
        elif (expected := check(item)) is not None:
            raise BadRequest(f"{name} must be {expected}.", param=name)
        else:
            parameters[name] = item
    if required not in parameters:
        raise MissingParameter(f"{required} is required.", param=required)
    return parameters


def _refuse_conflicts(path: str, parameters: Mapping[str, Any]) -> None:
    if path != COMPLETIONS:
        return
    if parameters.get("max_tokens") == 0 and not parameters.get("echo"):
        raise BadRequest("max_tokens may be 0 only with echo: true.", param="max_tokens")
    sequences = num_prompts(parameters) * parameters.get("n", 1)
    if sequences > MAX_SEQUENCES:
        raise BadRequest(
            f"The prompts times n must be at most {MAX_SEQUENCES}. Send fewer prompts in a request.",
            param="prompt",
        )


def _too_many_parts(body: bytes) -> bool:
    """Return True if JSON holds more than MAX_PARTS lists, objects and strings; takes a few passes."""
    if body.count(b"[") + body.count(b"{") + body.count(b'"') <= MAX_PARTS:
        return False
    # A text may be full of brackets, and of escaped quotation marks.
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    quotes = bare.count(b'"')
    if quotes > 2 * MAX_PARTS:
        return True
    opened = sum(piece.count(b"[") + piece.count(b"{") for piece in bare.split(b'"')[::2])
    return opened + quotes // 2 > MAX_PARTS


def _unknown_parameter(name: str) -> UnknownParameter:
    shown = name[:64]
    if name in _OURS:
        return UnknownParameter(f"{shown} is set by the gateway and cannot be sent.", param=shown)
    return UnknownParameter(f"Unknown parameter: {shown!r}. Remove it from the request.", param=shown)


def _view(options: Mapping[str, bool]) -> UsageView:
    if options.get("continuous_usage_stats") and options.get("include_usage"):
        return UsageView.CONTINUOUS
    return UsageView.FINAL if options.get("include_usage") else UsageView.HIDDEN
