"""OpenAI's request bodies, checked field by field: nothing unknown or ill-typed gets through silently."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from contracts.adapters.reference import MAX_MIX, AdapterMix, AdapterRef
from contracts.errors import ContractError
from contracts.openai import bounds
from worker_engine.errors import InvalidRequest
from worker_engine.openai.body import parse_object
from worker_engine.openai.constraints import CONSTRAINTS, Constraint, parse_constraint
from worker_engine.openai.fields import Fields, show
from worker_engine.openai.messages import MESSAGE_SCHEMA, Message, parse_messages
from worker_engine.openai.origin import FIELDS as ORIGIN_FIELDS
from worker_engine.openai.origin import parse_origin
from worker_engine.openai.parameters import Flag, Items, Number, Parameter, SchemaOnly, Whole
from worker_engine.openai.tools import MAX_TOOLS, ToolUse, parse_tools
from worker_engine.protocol import Origin, SamplingParams

NEUTRAL: Final[Mapping[str, object]] = {"best_of": 1, "suffix": "", "store": False}
"""Parameters of OpenAI's that this worker knows but serves only at their default."""
IGNORED: Final = ("user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key")
"""Parameters that do not touch generation."""
_NUMBERS: Final[Mapping[str, Number]] = {
    name: Number(limits.default, limits.low, limits.high, open_low=limits.worker_excludes_low)
    for name, limits in bounds.NUMBERS.items()
}
_WHOLES, _CHAT_WHOLES, _COMPLETION_WHOLES = (
    {name: Whole(limits.low, limits.worker_high) for name, limits in table.items()}
    for table in (bounds.INTEGERS, bounds.CHAT_INTEGERS, bounds.COMPLETION_INTEGERS)
)
_FLAGS: Final[Mapping[str, Flag]] = {
    "include_stop_str_in_output": Flag(),
    "return_token_ids": Flag(),
    "skip_special_tokens": Flag(default=True),
    "ignore_eos": Flag(),
    "stream": Flag(),
}
_LISTS: Final[Mapping[str, Items]] = {
    name: Items(bounds.LIST_SIZES[name], kind, wanted.format(bounds.LIST_SIZES[name]), max_length)
    for name, kind, wanted, max_length in (
        ("stop_token_ids", int, "at most {} ids", None),
        ("bad_words", str, "at most {} non-empty strings of up to 200 characters", 200),
        ("allowed_token_ids", int, "1 to {} ids", None),
    )
}
_PROMPT_LOGPROBS: Final = _WHOLES["prompt_logprobs"]
TRUNCATE: Final = _WHOLES["truncate_prompt_tokens"]
"""Last tokens of a prompt that are used; -1 as many as the context has room for."""
CHAT_FLAGS: Final[Mapping[str, Flag]] = {
    "add_generation_prompt": Flag(default=True),
    "continue_final_message": Flag(),
}
TOOLS: Final = SchemaOnly({"type": ["array", "null"], "items": {"type": "object"}, "maxItems": MAX_TOOLS})
_OBJECT: Final = SchemaOnly({"type": ["object", "null"]})
_TEXT: Final = {"type": "string", "minLength": 1}
_IDS: Final = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_PROMPTS: Final = f"a string, a list of token ids, or a list of 1 to {bounds.MAX_PROMPTS} of either"
SAMPLING: Final[Mapping[str, Parameter]] = {
    **_NUMBERS,
    **{name: _WHOLES[name] for name in ("max_tokens", "top_k", "seed", "min_tokens")},
    **{name: flag for name, flag in _FLAGS.items() if name not in ("stream", "return_token_ids")},
    **_LISTS,
    "stop": SchemaOnly(
        {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "array", "items": {"type": "string", "minLength": 1}, "maxItems": bounds.MAX_STOPS},
                {"type": "null"},
            ]
        }
    ),
    "logit_bias": SchemaOnly(
        {
            "type": ["object", "null"],
            "propertyNames": {"pattern": "^[0-9]{1,9}$"},
            "additionalProperties": {
                "type": "number",
                "minimum": -bounds.MAX_BIAS,
                "maximum": bounds.MAX_BIAS,
            },
            "maxProperties": bounds.MAX_BIASES,
        }
    ),
    **{name: SchemaOnly() for name in CONSTRAINTS},
}
"""How tokens are drawn: what every route that generates takes."""
WHO: Final[Mapping[str, Parameter]] = {
    "model": SchemaOnly({"type": "string"}),
    "adapter": _OBJECT,
    "adapters": SchemaOnly({"type": ["array", "null"], "items": {"type": "object"}, "maxItems": MAX_MIX}),
    **{name: SchemaOnly() for name in ORIGIN_FIELDS},
}
"""Which model answers, and for whom: what every route takes that computes."""
_SHARED: Final[Mapping[str, Parameter]] = {
    **WHO,
    **SAMPLING,
    "n": _WHOLES["n"],
    "stream": _FLAGS["stream"],
    "stream_options": _OBJECT,
    "return_token_ids": _FLAGS["return_token_ids"],
    "truncate_prompt_tokens": TRUNCATE,
    **{name: SchemaOnly() for name in (*NEUTRAL, *IGNORED)},
}
CHAT: Final[Mapping[str, Parameter]] = {
    **_SHARED,
    "messages": SchemaOnly(
        {"type": "array", "minItems": 1, "maxItems": bounds.MAX_MESSAGES, "items": MESSAGE_SCHEMA}
    ),
    **_CHAT_WHOLES,
    **CHAT_FLAGS,
    "logprobs": Flag(),
    "prompt_logprobs": _PROMPT_LOGPROBS,
    "tools": TOOLS,
    "tool_choice": SchemaOnly({"type": ["string", "object", "null"]}),
    "parallel_tool_calls": Flag(default=True),
}
Prompt = str | tuple[int, ...]
COMPLETION: Final[Mapping[str, Parameter]] = {
    **_SHARED,
    "prompt": SchemaOnly(
        {
            "anyOf": [
                _TEXT,
                _IDS,
                {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": bounds.MAX_PROMPTS},
                {"type": "array", "items": _IDS, "minItems": 1, "maxItems": bounds.MAX_PROMPTS},
            ]
        }
    ),
    **_COMPLETION_WHOLES,
    "echo": Flag(),
    "prompt_logprobs": _PROMPT_LOGPROBS,
}


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A request body after checking.

    Attributes:
        messages: a chat request's messages, content joined to text; None for a completion.
        prompts: a completion's, each text or token ids; none in a chat.
        n: choices of each prompt.
        max_tokens: None takes the endpoint's default; 0 only echoes the prompt.
        sampling: without `max_tokens`, grammar and bad words, which need the prompt, tools and tokenizer.
        generation_prompt: the chat's prompt ends with what opens an answer.
        continues: the model goes on with the chat's last message.
        truncate: as TRUNCATE; None for the whole prompt.
        prompt_logprobs: as vLLM tells them; `sampling` also asks for those that `echo` tells.
    """

    model: str
    adapter: AdapterRef | AdapterMix | None
    messages: tuple[Message, ...] | None
    prompts: tuple[Prompt, ...]
    n: int
    max_tokens: int | None
    sampling: SamplingParams
    bad_words: tuple[str, ...]
    constraint: Constraint | None
    tools: ToolUse | None
    generation_prompt: bool
    continues: bool
    truncate: int | None
    return_token_ids: bool
    echo: bool
    prompt_logprobs: int | None
    stream: bool
    include_usage: bool
    continuous_usage: bool
    origin: Origin


def parse(body: bytes, *, chat: bool) -> CompletionRequest:
    """Raises InvalidRequest whose `param` names the field at fault."""
    return check(parse_object(body), chat=chat)


def check(value: Mapping[str, Any], *, chat: bool) -> CompletionRequest:
    """A body that `parse_object` let through. Raises InvalidRequest as `parse`."""
    fields = Fields(value)
    fields.refuse_others(CHAT if chat else COMPLETION)
    _demand_neutral(value)
    stream = _FLAGS["stream"].read(fields, "stream")
    options = _stream_options(fields, stream)
    echo = not chat and fields.flag("echo")
    max_tokens = (_COMPLETION_WHOLES if echo else _WHOLES)["max_tokens"].read(fields, "max_tokens")
    adapter = parse_adapter(fields)
    tools, constraint = parse_tools(fields) if chat else None, parse_constraint(fields)
    if tools and tools.required and constraint and constraint.param == "response_format":
        # It is about an answer's text, and one that must be calls has none.
        constraint = None
    generation_prompt, continues = read_chat_flags(fields) if chat else (True, False)
    request = CompletionRequest(
        model=fields.text("model"),
        adapter=adapter,
        messages=parse_messages(fields.get("messages", None, list, "a list")) if chat else None,
        prompts=() if chat else _prompts(fields),
        n=_WHOLES["n"].read(fields, "n") or 1,
        max_tokens=_CHAT_WHOLES["max_completion_tokens"].read(fields, "max_completion_tokens") or max_tokens,
        sampling=_sampling(fields, chat=chat, echo=echo),
        bad_words=_LISTS["bad_words"].read(fields, "bad_words"),
        constraint=constraint,
        tools=tools,
        generation_prompt=generation_prompt,
        continues=continues,
        truncate=read_truncate(fields),
        return_token_ids=_FLAGS["return_token_ids"].read(fields, "return_token_ids"),
        echo=echo,
        prompt_logprobs=_PROMPT_LOGPROBS.read(fields, "prompt_logprobs"),
        stream=stream,
        include_usage=options.flag("include_usage"),
        continuous_usage=options.flag("continuous_usage_stats"),
        origin=parse_origin(value, adapter),
    )
    _refuse_conflicts(request)
    return request


def read_chat_flags(fields: Fields) -> tuple[bool, bool]:
    """Read `add_generation_prompt` and `continue_final_message`. Raises InvalidRequest for both."""
    prompt, continues = (flag.read(fields, name) for name, flag in CHAT_FLAGS.items())
    if continues and prompt and "add_generation_prompt" in fields:
        raise InvalidRequest(
            "continue_final_message and add_generation_prompt exclude each other",
            param="continue_final_message",
        )
    return prompt and not continues, continues


def read_truncate(fields: Fields) -> int | None:
    """Read `truncate_prompt_tokens`. Raises InvalidRequest."""
    truncate = TRUNCATE.read(fields, "truncate_prompt_tokens")
    if truncate == 0:
        raise fields.wrong("truncate_prompt_tokens", "-1 or at least 1")
    return truncate


def _demand_neutral(value: Mapping[str, Any]) -> None:
    for name, neutral in NEUTRAL.items():
        # The types too: in Python, True equals 1 and False equals 0.
        given = value.get(name)
        if given is not None and (given != neutral or type(given) is not type(neutral)):
            raise InvalidRequest(f"{name} is served only as {show(neutral)}", param=name)


def _refuse_conflicts(request: CompletionRequest) -> None:
    if request.stream and request.prompt_logprobs is not None:
        raise InvalidRequest("prompt_logprobs is not told in a stream", param="prompt_logprobs")
    if request.sampling.allowed_token_ids is not None and request.bad_words:
        raise InvalidRequest("bad_words is not served together with allowed_token_ids", param="bad_words")
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
    if request.sampling.allowed_token_ids is not None:
        raise InvalidRequest(
            "allowed_token_ids is not served together with a grammar", param="allowed_token_ids"
        )


def _stream_options(fields: Fields, stream: bool) -> Fields:
    values = fields.get("stream_options", {}, dict, "an object")
    if unknown := sorted(set(values) - {"include_usage", "continuous_usage_stats", "include_obfuscation"}):
        raise InvalidRequest(f"stream_options.{unknown[0]} is not known", param="stream_options")
    if values and not stream:
        raise InvalidRequest("stream_options needs stream: true", param="stream_options")
    return Fields(values, "stream_options.")


def _sampling(fields: Fields, *, chat: bool, echo: bool) -> SamplingParams:
    number = {name: item.read(fields, name) for name, item in _NUMBERS.items()}
    whole = {name: _WHOLES[name].read(fields, name) for name in ("top_k", "seed", "min_tokens")}
    flag = {name: item.read(fields, name) for name, item in _FLAGS.items()}
    logprobs = _logprobs(fields, chat=chat)
    of_prompt = [_PROMPT_LOGPROBS.read(fields, "prompt_logprobs"), logprobs if echo else None]
    return SamplingParams(
        max_tokens=1,
        temperature=number["temperature"],
        top_p=number["top_p"],
        min_p=number["min_p"],
        presence_penalty=number["presence_penalty"],
        frequency_penalty=number["frequency_penalty"],
        repetition_penalty=number["repetition_penalty"],
        top_k=max(whole["top_k"] or 0, 0),
        seed=whole["seed"],
        stop=_stop(fields),
        stop_token_ids=_LISTS["stop_token_ids"].read(fields, "stop_token_ids"),
        include_stop=flag["include_stop_str_in_output"],
        skip_special_tokens=flag["skip_special_tokens"],
        min_tokens=whole["min_tokens"] or 0,
        allowed_token_ids=_allowed(fields),
        ignore_eos=flag["ignore_eos"],
        logit_bias=_logit_bias(fields),
        logprobs=logprobs,
        prompt_logprobs=max((count for count in of_prompt if count is not None), default=None),
    )


def _logprobs(fields: Fields, *, chat: bool) -> int | None:
    if not chat:
        return _COMPLETION_WHOLES["logprobs"].read(fields, "logprobs")
    top = _CHAT_WHOLES["top_logprobs"].read(fields, "top_logprobs")
    if not fields.flag("logprobs"):
        if top:
            raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
        return None
    return top or 0


def _allowed(fields: Fields) -> tuple[int, ...] | None:
    ids = _LISTS["allowed_token_ids"].read(fields, "allowed_token_ids")
    if "allowed_token_ids" not in fields:
        return None
    if not ids:
        raise fields.wrong("allowed_token_ids", _LISTS["allowed_token_ids"].wanted)
    return ids


def _logit_bias(fields: Fields) -> tuple[tuple[int, float], ...]:
    most = bounds.MAX_BIAS
    wanted = f"an object of at most {bounds.MAX_BIASES} biases from -{most} to {most} by token id"
    values: dict[str, Any] = fields.get("logit_bias", {}, dict, wanted)
    right = len(values) <= bounds.MAX_BIASES and all(
        token.isascii() and token.isdecimal() and len(token) < 10 for token in values
    )
    if not right or not all(type(bias) in (int, float) and abs(bias) <= most for bias in values.values()):
        raise fields.wrong("logit_bias", wanted)
    return tuple((int(token), float(bias)) for token, bias in values.items())


def _stop(fields: Fields) -> tuple[str, ...]:
    value = fields.get("stop", [], (str, list), "a string or a list of strings")
    stops = [value] if isinstance(value, str) else value
    if len(stops) > bounds.MAX_STOPS or not all(isinstance(item, str) and item for item in stops):
        raise InvalidRequest(f"stop must be up to {bounds.MAX_STOPS} non-empty strings", param="stop")
    return tuple(stops)


def parse_adapter(fields: Fields) -> AdapterRef | AdapterMix | None:
    """`adapter` or `adapters`. Raises InvalidRequest."""
    one = fields.get("adapter", {}, dict, "an object")
    several = fields.get("adapters", [], list, "a list of objects with adapter and weight")
    if one and several:
        raise InvalidRequest("adapters is not served together with adapter", param="adapters")
    try:
        if several:
            return AdapterMix.from_list(several)
        return AdapterRef.from_dict(one) if one else None
    except ContractError as error:
        raise InvalidRequest(str(error), param="adapters" if several else "adapter") from error


def _prompts(fields: Fields) -> tuple[Prompt, ...]:
    given: Any = fields.get("prompt", None, (str, list), _PROMPTS)
    one = isinstance(given, str) or (bool(given) and all(type(item) is int for item in given))
    items = [given] if one else given
    if not 0 < len(items) <= bounds.MAX_PROMPTS:
        raise fields.wrong("prompt", _PROMPTS)
    for item in items:
        ids = isinstance(item, list) and all(type(part) is int for part in item)
        if not (ids or isinstance(item, str)) or isinstance(item, str) is not isinstance(items[0], str):
            raise fields.wrong("prompt", _PROMPTS)
    return tuple(item if isinstance(item, str) else tuple(item) for item in items)
