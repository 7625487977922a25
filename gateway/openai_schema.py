"""Which request parameters the API takes, and within what bounds.

An allow-list: what is not named here is refused by name, so nothing that a backend happens to
understand (a cache salt, an adapter, a template, a URL) can be reached from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from gateway.errors import BadRequest, UnknownParameter
from gateway.sse import UsageView

Check = Callable[[Any], str | None]
"""Takes a value; says what was expected when the value is not that."""

MAX_MESSAGES: Final = 4096
MAX_STOPS: Final = 16
MAX_SCHEMA_BYTES: Final = 64 << 10
MAX_CHOICES: Final = 128
MAX_BIASES: Final = 1024
MAX_TOKENS: Final = 1 << 20
_STREAM_OPTIONS: Final = {"include_usage", "continuous_usage_stats", "include_obfuscation"}


def _integer(low: int, high: int) -> Check:
    def check(value: Any) -> str | None:
        right = type(value) is int and low <= value <= high
        return None if right else f"an integer from {low} to {high}"

    return check


def _number(low: float, high: float) -> Check:
    def check(value: Any) -> str | None:
        right = type(value) in (int, float) and low <= value <= high
        return None if right else f"a number from {low:g} to {high:g}"

    return check


def _boolean(value: Any) -> str | None:
    return None if type(value) is bool else "true or false"


def _stop(value: Any) -> str | None:
    stops = [value] if isinstance(value, str) else value
    right = isinstance(stops, list) and len(stops) <= MAX_STOPS
    right = right and all(isinstance(text, str) and 0 < len(text) <= 1024 for text in stops)
    return None if right else f"a string or at most {MAX_STOPS} strings of 1 to 1024 characters"


def _messages(value: Any) -> str | None:
    right = isinstance(value, list) and 0 < len(value) <= MAX_MESSAGES
    right = right and all(isinstance(item, dict) and isinstance(item.get("role"), str) for item in value)
    if right and not all(isinstance(part, str) for item in value for part in item.values()):
        right = _encodes(value)
    return None if right else f"1 to {MAX_MESSAGES} objects, each with a role"


def _prompt(value: Any) -> str | None:
    if isinstance(value, str):
        return None
    tokens = isinstance(value, list) and 0 < len(value) <= MAX_TOKENS
    tokens = tokens and all(type(token) is int and token >= 0 for token in value)
    return None if tokens else "a string or a list of token ids (one prompt a request)"


def _stream_options(value: Any) -> str | None:
    known = isinstance(value, dict) and value.keys() <= _STREAM_OPTIONS
    known = known and all(type(item) is bool for item in value.values())
    return None if known else "an object of include_usage and continuous_usage_stats, true or false"


def _schema(value: Any) -> str | None:
    right = isinstance(value, dict | list | str) and _encodes(value, MAX_SCHEMA_BYTES)
    return None if right else f"JSON of at most {MAX_SCHEMA_BYTES} bytes, nested less than 200 levels deep"


def _encodes(value: Any, most: int = 1 << 30) -> bool:
    """Whether a value can be sent on: the decoder takes deeper nesting than the encoder."""
    try:
        return len(orjson.dumps(value)) <= most
    except orjson.JSONEncodeError:
        return False


def _list_of(kind: type, most: int) -> Check:
    def check(value: Any) -> str | None:
        right = isinstance(value, list) and len(value) <= most and all(type(item) is kind for item in value)
        return None if right else f"a list of at most {most} values of type {kind.__name__}"

    return check


def _logit_bias(value: Any) -> str | None:
    right = isinstance(value, dict) and len(value) <= MAX_BIASES
    right = right and all(type(bias) in (int, float) and -100 <= bias <= 100 for bias in value.values())
    return None if right else f"an object of at most {MAX_BIASES} biases from -100 to 100"


_COMMON: Final[Mapping[str, Check]] = {
    "stream": _boolean,
    "stream_options": _stream_options,
    "max_tokens": _integer(1, MAX_TOKENS),
    "temperature": _number(0, 2),
    "top_p": _number(0, 1),
    "n": _integer(1, MAX_CHOICES),
    "stop": _stop,
    "seed": _integer(-(1 << 63), (1 << 63) - 1),
    "presence_penalty": _number(-2, 2),
    "frequency_penalty": _number(-2, 2),
    "repetition_penalty": _number(0.01, 10),
    "top_k": _integer(-1, 1 << 20),
    "min_p": _number(0, 1),
    "min_tokens": _integer(0, MAX_TOKENS),
    "ignore_eos": _boolean,
    "logit_bias": _logit_bias,
    "stop_token_ids": _list_of(int, 64),
    "bad_words": _list_of(str, 64),
    "include_stop_str_in_output": _boolean,
    "skip_special_tokens": _boolean,
    "structured_outputs": _schema,
    "guided_json": _schema,
    "guided_regex": _schema,
    "guided_choice": _schema,
    "response_format": _schema,
}
PARAMETERS: Final[Mapping[str, Mapping[str, Check]]] = {
    "/v1/chat/completions": {
        **_COMMON,
        "messages": _messages,
        "max_completion_tokens": _integer(1, MAX_TOKENS),
        "logprobs": _boolean,
        "top_logprobs": _integer(0, 20),
        "tools": _schema,
        "tool_choice": _schema,
        "parallel_tool_calls": _boolean,
    },
    "/v1/completions": {
        **_COMMON,
        "prompt": _prompt,
        "echo": _boolean,
        "suffix": _schema,
        "best_of": _integer(1, 1),
        "logprobs": _integer(0, 20),
    },
}
IGNORED: Final = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
)
"""OpenAI's parameters without a meaning here that clients send by habit; they are not passed on."""
_OURS: Final = frozenset({"adapter", "adapters", "cache_salt", "tenant", "request_id", "lora_request"})
_REQUIRED: Final = {"/v1/chat/completions": "messages", "/v1/completions": "prompt"}


@dataclass(frozen=True, slots=True)
class Call:
    """A checked request.

    Attributes:
        path: `/v1/chat/completions` or `/v1/completions`.
        parameters: what to pass on; without model, stream and stream_options, which the gateway sets.
        view: which usage a streaming client sees.
    """

    path: str
    model: str
    stream: bool
    view: UsageView
    parameters: dict[str, Any]


def parse(path: str, body: bytes) -> Call:
    """Checks a request body for `path`.

    Raises:
        BadRequest: not a JSON object, a missing or malformed parameter, named in the message.
        UnknownParameter: a parameter that is not on the list.
    """
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"The body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadRequest("The body must be a JSON object.")
    model = value.pop("model", None)
    if not isinstance(model, str) or not model:
        raise BadRequest("model must be a non-empty string.", param="model")
    if _REQUIRED[path] not in value:
        raise BadRequest(f"{_REQUIRED[path]} is required.", param=_REQUIRED[path])
    parameters = _checked(path, value)
    stream = bool(parameters.pop("stream", False))
    options = parameters.pop("stream_options", None)
    if options is not None and not stream:
        raise BadRequest("stream_options is only allowed with stream: true.", param="stream_options")
    return Call(path, model, stream, _view(options or {}), parameters)


def _checked(path: str, value: dict[str, Any]) -> dict[str, Any]:
    checks = PARAMETERS[path]
    parameters: dict[str, Any] = {}
    for name, item in value.items():
        check = checks.get(name)
        if check is None:
            if name not in IGNORED:
                raise _unknown(name)
        elif item is not None:  # null means the default, as OpenAI's clients send it
            if (expected := check(item)) is not None:
                raise BadRequest(f"{name} must be {expected}.", param=name)
            parameters[name] = item
    if _REQUIRED[path] not in parameters:
        raise BadRequest(f"{_REQUIRED[path]} is required.", param=_REQUIRED[path])
    return parameters


def _unknown(name: str) -> UnknownParameter:
    shown = name[:64]
    if name in _OURS:
        return UnknownParameter(f"{shown} is set by the gateway and cannot be sent.", param=shown)
    return UnknownParameter(f"Unknown parameter: {shown!r}. Remove it from the request.", param=shown)


def _view(options: Mapping[str, bool]) -> UsageView:
    if options.get("continuous_usage_stats") and options.get("include_usage"):
        return UsageView.CONTINUOUS
    return UsageView.FINAL if options.get("include_usage") else UsageView.HIDDEN
