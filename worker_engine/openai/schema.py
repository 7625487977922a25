"""OpenAI's request bodies, checked field by field: nothing unknown or ill-typed gets through silently."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from contracts.adapters.reference import MAX_MIX, AdapterMix, AdapterRef
from contracts.errors import ContractError
from contracts.openai import parameters as openai
from contracts.openai.kinds import Kind, Prompts, prompts_of
from worker_engine.errors import InvalidRequest
from worker_engine.openai.body import parse_object
from worker_engine.openai.constraints import Constraint, parse_constraint
from worker_engine.openai.fields import Fields, show
from worker_engine.openai.messages import MESSAGE_SCHEMA, Message, parse_messages
from worker_engine.openai.origin import FIELDS as ORIGIN_FIELDS
from worker_engine.openai.origin import parse_origin
from worker_engine.openai.parameters import Parameter, SchemaOnly
from worker_engine.openai.thinking import Thinking
from worker_engine.openai.tools import ToolUse, parse_tools
from worker_engine.protocol import Origin, SamplingParams

NEUTRAL: Final[Mapping[str, object]] = {"best_of": 1, "suffix": "", "store": False}
"""Parameters of OpenAI's that this worker knows but serves only at their default."""
_CHAT: Final[Mapping[str, Kind]] = {**openai.CHAT, **openai.WORKER_BOUNDS}
_COMPLETION: Final[Mapping[str, Kind]] = {**openai.COMPLETIONS, **openai.WORKER_BOUNDS}
_PASSED: Final = (
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop_token_ids",
    "skip_special_tokens",
    "ignore_eos",
)
"""Parameters that SamplingParams takes as they are."""
TOOLS: Final = SchemaOnly(
    {"type": ["array", "null"], "items": {"type": "object"}, "maxItems": openai.MAX_TOOLS}
)
_OBJECT: Final = SchemaOnly({"type": ["object", "null"]})
SAMPLING: Final[Mapping[str, Parameter]] = {
    **openai.SAMPLING,
    **openai.WORKER_BOUNDS,
    **{name: SchemaOnly() for name in openai.CONSTRAINTS},
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
    **{name: SchemaOnly() for name in (*NEUTRAL, *openai.IGNORED)},
}
Prompt = str | tuple[int, ...]
CHAT: Final[Mapping[str, Parameter]] = {
    **_SHARED,
    **_CHAT,
    "messages": SchemaOnly(
        {"type": "array", "minItems": 1, "maxItems": openai.MAX_MESSAGES, "items": MESSAGE_SCHEMA}
    ),
    "tools": TOOLS,
    "tool_choice": SchemaOnly({"type": ["string", "object", "null"]}),
}
COMPLETION: Final[Mapping[str, Parameter]] = {**_SHARED, **_COMPLETION, "prompt": openai.PROMPT}


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
        thinking: None for a completion.
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
    thinking: Thinking | None
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
    given = {name: fields.read(name, kind) for name, kind in (_CHAT if chat else _COMPLETION).items()}
    options = given["stream_options"] or {}
    if options and not given["stream"]:
        raise InvalidRequest("stream_options needs stream: true", param="stream_options")
    echo = given.get("echo", False)
    if given["max_tokens"] == 0 and not echo:
        raise InvalidRequest("max_tokens may be 0 only with echo: true", param="max_tokens")
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
        prompts=() if chat else read_prompts(fields, "prompt", openai.PROMPT),
        n=given["n"] or 1,
        max_tokens=given.get("max_completion_tokens") or given["max_tokens"],
        sampling=_sampling(fields, given, echo=echo),
        bad_words=given["bad_words"],
        constraint=constraint,
        tools=tools,
        generation_prompt=generation_prompt,
        continues=continues,
        thinking=_thinking(given) if chat else None,
        truncate=given["truncate_prompt_tokens"],
        return_token_ids=given["return_token_ids"],
        echo=echo,
        prompt_logprobs=given["prompt_logprobs"],
        stream=given["stream"],
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("continuous_usage_stats")),
        origin=parse_origin(value, adapter),
    )
    _refuse_conflicts(request)
    return request


def _thinking(given: Mapping[str, Any]) -> Thinking:
    arguments, effort = given["chat_template_kwargs"] or {}, given["reasoning_effort"]
    return Thinking(arguments, effort, given["thinking_token_budget"], given["include_reasoning"])


def read_chat_flags(fields: Fields) -> tuple[bool, bool]:
    """Read `add_generation_prompt` and `continue_final_message`. Raises InvalidRequest for both."""
    prompt, continues = (fields.read(name, flag) for name, flag in openai.CHAT_FLAGS.items())
    if continues and prompt and "add_generation_prompt" in fields:
        raise InvalidRequest(
            "continue_final_message and add_generation_prompt exclude each other",
            param="continue_final_message",
        )
    return prompt and not continues, continues


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


def _sampling(fields: Fields, given: Mapping[str, Any], *, echo: bool) -> SamplingParams:
    logprobs = _logprobs(given)
    of_prompt = [given["prompt_logprobs"], logprobs if echo else None]
    stop, biases = given["stop"] or (), given["logit_bias"] or {}
    return SamplingParams(
        max_tokens=1,
        **{name: given[name] for name in _PASSED},
        top_k=max(given["top_k"] or 0, 0),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        include_stop=given["include_stop_str_in_output"],
        min_tokens=given["min_tokens"] or 0,
        allowed_token_ids=given["allowed_token_ids"] or None,
        logit_bias=tuple((int(token), float(bias)) for token, bias in biases.items()),
        logprobs=logprobs,
        prompt_logprobs=max((count for count in of_prompt if count is not None), default=None),
    )


def _logprobs(given: Mapping[str, Any]) -> int | None:
    """Return the number of alternatives to list; None for no log probabilities."""
    if "top_logprobs" not in given:  # a completion states the number itself
        count: int | None = given["logprobs"]
        return count
    if given["top_logprobs"] and not given["logprobs"]:
        raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
    return (given["top_logprobs"] or 0) if given["logprobs"] else None


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


def read_prompts(fields: Fields, name: str, kind: Prompts) -> tuple[Prompt, ...]:
    """Read a required parameter of one or several prompts. Raises InvalidRequest."""
    prompts = prompts_of(fields.require(name, kind))
    return tuple(item if isinstance(item, str) else tuple(item) for item in prompts)
