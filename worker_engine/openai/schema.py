"""OpenAI's request bodies, checked field by field: nothing unknown or ill-typed gets through silently."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from worker_engine.errors import InvalidRequest
from worker_engine.openai.constraints import CONSTRAINTS, Constraint, parse_constraint
from worker_engine.openai.fields import Fields, show
from worker_engine.openai.messages import Message, parse_messages
from worker_engine.openai.origin import FIELDS as ORIGIN_FIELDS
from worker_engine.openai.origin import parse_origin
from worker_engine.openai.tools import ToolUse, parse_tools
from worker_engine.protocol import AdapterMix, AdapterRef, Origin, ProtocolError, SamplingParams

MAX_CHOICES: Final = 128
MAX_STOP_STRINGS: Final = 16
MAX_STOP_TOKENS: Final = 64
MAX_BAD_WORDS: Final = 64
MAX_BIASES: Final = 1024
MAX_LOGPROBS: Final = 20
MAX_DEPTH: Final = 100
"""Levels of nesting in any one parameter."""
_NEUTRAL: Final[Mapping[str, object]] = {"best_of": 1, "suffix": "", "store": False}
"""Parameters of OpenAI's that this worker knows but serves only at their default."""
_IGNORED: Final = ("user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key")
"""Parameters that do not touch generation."""
_SHARED: Final = (
    "model", "adapter", "adapters", "n", "max_tokens", "temperature", "top_p", "top_k", "min_p", "seed",
    "stop", "stop_token_ids", "include_stop_str_in_output", "skip_special_tokens", "min_tokens", "ignore_eos",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "bad_words", "logprobs",
    "stream", "stream_options", *CONSTRAINTS, *ORIGIN_FIELDS,
)  # fmt: skip
_CHAT: Final = (
    "messages", "max_completion_tokens", "top_logprobs", "tools", "tool_choice", "parallel_tool_calls"
)  # fmt: skip
_COMPLETION: Final = ("prompt", "echo")


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A request body after checking.

    Attributes:
        messages: a chat request's messages, content joined to text; None for a completion.
        prompt: a completion's prompt, text or token ids.
        max_tokens: None takes the endpoint's default.
        sampling: without `max_tokens`, grammar and bad words, which need the prompt, tools and tokenizer.
    """

    model: str
    adapter: AdapterRef | AdapterMix | None
    messages: tuple[Message, ...] | None
    prompt: str | tuple[int, ...]
    n: int
    max_tokens: int | None
    sampling: SamplingParams
    bad_words: tuple[str, ...]
    constraint: Constraint | None
    tools: ToolUse | None
    echo: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool
    origin: Origin


def parse(body: bytes, *, chat: bool) -> CompletionRequest:
    """Raises InvalidRequest whose `param` names the field at fault."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidRequest("the body must be a JSON object")
    _demand_shallow(value)
    fields = Fields(value)
    fields.refuse_others((*_SHARED, *_NEUTRAL, *_IGNORED, *(_CHAT if chat else _COMPLETION)))
    _demand_neutral(value)
    stream = fields.flag("stream")
    options = _stream_options(fields, stream)
    max_tokens = fields.whole("max_tokens", 1)
    adapter = _adapter(fields)
    request = CompletionRequest(
        model=fields.text("model"),
        adapter=adapter,
        messages=parse_messages(fields.get("messages", None, list, "a list")) if chat else None,
        prompt="" if chat else _prompt(fields.get("prompt", None, (str, list), "a string or token ids")),
        n=fields.whole("n", 1, MAX_CHOICES) or 1,
        max_tokens=(fields.whole("max_completion_tokens", 1) if chat else None) or max_tokens,
        sampling=_sampling(fields, chat=chat),
        bad_words=_bad_words(fields),
        constraint=parse_constraint(fields),
        tools=parse_tools(fields) if chat else None,
        echo=not chat and fields.flag("echo"),
        stream=stream,
        include_usage=options.flag("include_usage"),
        continuous_usage=options.flag("continuous_usage_stats"),
        origin=parse_origin(value, adapter),
    )
    _refuse_conflicts(request)
    return request


def _demand_shallow(value: Mapping[str, Any]) -> None:
    """Whatever walks a schema or a message may recurse: nothing deep gets that far."""
    for name, item in value.items():
        level = [item]
        for _ in range(MAX_DEPTH):
            containers = [outer for outer in level if isinstance(outer, (dict, list))]
            if not containers:
                break
            parts = (outer.values() if isinstance(outer, dict) else outer for outer in containers)
            level = [inner for part in parts for inner in part]
        else:
            raise InvalidRequest(f"{name[:64]} is nested deeper than {MAX_DEPTH} levels", param=name[:64])


def _demand_neutral(value: Mapping[str, Any]) -> None:
    for name, neutral in _NEUTRAL.items():
        # The types too: in Python, True equals 1 and False equals 0.
        given = value.get(name)
        if given is not None and (given != neutral or type(given) is not type(neutral)):
            raise InvalidRequest(f"{name} is served only as {show(neutral)}", param=name)


def _refuse_conflicts(request: CompletionRequest) -> None:
    if request.echo and request.sampling.logprobs is not None:
        raise InvalidRequest("echo with logprobs is not served: prompts have no logprobs", param="echo")
    if request.constraint is None and not (request.tools and request.tools.required):
        return
    if request.constraint is not None and request.tools is not None and request.tools.required:
        name = request.constraint.param
        raise InvalidRequest(f"{name} cannot be met together with tool_choice", param=name)
    # Either could forbid all that the grammar allows.
    if request.sampling.min_tokens:
        raise InvalidRequest("min_tokens is not served together with a grammar", param="min_tokens")
    if request.bad_words:
        raise InvalidRequest("bad_words is not served together with a grammar", param="bad_words")


def _stream_options(fields: Fields, stream: bool) -> Fields:
    values = fields.get("stream_options", {}, dict, "an object")
    if unknown := sorted(set(values) - {"include_usage", "continuous_usage_stats", "include_obfuscation"}):
        raise InvalidRequest(f"stream_options.{unknown[0]} is not known", param="stream_options")
    if values and not stream:
        raise InvalidRequest("stream_options needs stream: true", param="stream_options")
    return Fields(values, "stream_options.")


def _sampling(fields: Fields, *, chat: bool) -> SamplingParams:
    return SamplingParams(
        max_tokens=1,
        temperature=fields.number("temperature", 1.0, 0.0, 2.0),
        top_p=fields.number("top_p", 1.0, 0.0, 1.0, open_low=True),
        top_k=max(fields.whole("top_k", -1) or 0, 0),
        min_p=fields.number("min_p", 0.0, 0.0, 1.0),
        seed=fields.whole("seed", -(2**63)),
        stop=_stop(fields),
        stop_token_ids=fields.items("stop_token_ids", MAX_STOP_TOKENS, int, f"at most {MAX_STOP_TOKENS} ids"),
        include_stop=fields.flag("include_stop_str_in_output"),
        skip_special_tokens=fields.flag("skip_special_tokens", default=True),
        min_tokens=fields.whole("min_tokens", 0) or 0,
        ignore_eos=fields.flag("ignore_eos"),
        presence_penalty=fields.number("presence_penalty", 0.0, -2.0, 2.0),
        frequency_penalty=fields.number("frequency_penalty", 0.0, -2.0, 2.0),
        repetition_penalty=fields.number("repetition_penalty", 1.0, 0.01, 10.0),
        logit_bias=_logit_bias(fields),
        logprobs=_logprobs(fields, chat=chat),
    )


def _logprobs(fields: Fields, *, chat: bool) -> int | None:
    if not chat:
        return fields.whole("logprobs", 0, MAX_LOGPROBS)
    top = fields.whole("top_logprobs", 0, MAX_LOGPROBS)
    if not fields.flag("logprobs"):
        if top:
            raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
        return None
    return top or 0


def _logit_bias(fields: Fields) -> tuple[tuple[int, float], ...]:
    wanted = f"an object of at most {MAX_BIASES} biases from -100 to 100 by token id"
    values: dict[str, Any] = fields.get("logit_bias", {}, dict, wanted)
    right = len(values) <= MAX_BIASES and all(
        token.isascii() and token.isdecimal() and len(token) < 10 for token in values
    )
    if not right or not all(type(bias) in (int, float) and -100 <= bias <= 100 for bias in values.values()):
        raise fields.wrong("logit_bias", wanted)
    return tuple((int(token), float(bias)) for token, bias in values.items())


def _bad_words(fields: Fields) -> tuple[str, ...]:
    wanted = f"at most {MAX_BAD_WORDS} non-empty strings of up to 200 characters"
    words = fields.items("bad_words", MAX_BAD_WORDS, str, wanted)
    if not all(0 < len(word) <= 200 for word in words):
        raise fields.wrong("bad_words", wanted)
    return words


def _stop(fields: Fields) -> tuple[str, ...]:
    value = fields.get("stop", [], (str, list), "a string or a list of strings")
    stops = [value] if isinstance(value, str) else value
    if len(stops) > MAX_STOP_STRINGS or not all(isinstance(item, str) and item for item in stops):
        raise InvalidRequest(f"stop must be up to {MAX_STOP_STRINGS} non-empty strings", param="stop")
    return tuple(stops)


def _adapter(fields: Fields) -> AdapterRef | AdapterMix | None:
    one = fields.get("adapter", {}, dict, "an object")
    several = fields.get("adapters", [], list, "a list of objects with adapter and weight")
    if one and several:
        raise InvalidRequest("adapters is not served together with adapter", param="adapters")
    try:
        if several:
            return AdapterMix.from_list(several)
        return AdapterRef.from_dict(one) if one else None
    except ProtocolError as error:
        raise InvalidRequest(str(error), param="adapters" if several else "adapter") from error


def _prompt(value: str | list[Any]) -> str | tuple[int, ...]:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], (str, list)):
        value = value[0]
    if isinstance(value, str):
        return value
    if not all(type(item) is int for item in value):
        raise InvalidRequest("prompt must be one string or one list of token ids", param="prompt")
    return tuple(value)
