"""Responses requests: checks one, and builds the chat completion that serves it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from contracts.openai import parameters as openai
from contracts.openai.kinds import Integer, Text
from contracts.openai.parameters import MAX_TOOLS
from gateway.api.bounds import Check, metadata, one_of, schema
from gateway.api.responses.items import read_input
from gateway.api.schema import CHAT, Call, Dropped, check_parameters, drop_nothing, parse_object, user_of
from gateway.api.sse import UsageView
from gateway.errors import BadRequest, UnknownParameter

RESPONSES: Final = "/v1/responses"
LOGPROBS: Final = "message.output_text.logprobs"
_INCLUDES: Final = (LOGPROBS, "reasoning.encrypted_content")
"""Stateless clients request the second with every model; here thoughts are told in plain text."""
_SUMMARIES: Final = (None, "auto", "concise", "detailed")
_VERBOSITIES: Final = (None, "low", "medium", "high")
_STATELESS: Final = "responses are not stored. Send the whole conversation in input."


def _input(value: Any) -> str | None:
    return None if isinstance(value, str | list) else "a string or a list of items"


def _object(value: Any) -> str | None:
    return schema(value) if isinstance(value, dict) else "an object of format and verbosity"


def _include(value: Any) -> str | None:
    right = isinstance(value, list) and all(item in _INCLUDES for item in value)
    return None if right else f"a list of {' and '.join(_INCLUDES)}"


def _stream_options(value: Any) -> str | None:
    right = isinstance(value, dict) and value.keys() <= {"include_obfuscation"}
    return None if right and all(type(x) is bool for x in value.values()) else "include_obfuscation alone"


def _background(value: Any) -> str | None:
    return "false: a response is made while its request is open" if value is not False else None


def _reasoning(value: Any) -> str | None:
    """Check effort and summary; the latter is ignored, since the thought itself is told."""
    right = isinstance(value, dict) and value.keys() <= {"effort", "summary", "generate_summary"}
    right = right and value.get("effort") in (None, *openai.EFFORTS)
    right = right and all(value.get(name) in _SUMMARIES for name in ("summary", "generate_summary"))
    efforts = ", ".join(openai.EFFORTS)
    return None if right else f"an object of effort ({efforts}) and summary (auto, concise or detailed)"


WITHOUT_EFFECT: Final[Mapping[str, Check]] = {
    "stream_options": _stream_options,
    "truncation": one_of("auto", "disabled"),
    "max_tool_calls": Integer(1, 1 << 20).expected,
    "background": _background,
}
"""Parameters that clients send by habit and that have no effect here."""
_THINKING: Final = ("chat_template_kwargs", "include_reasoning", "thinking_token_budget")
"""Parameters of vLLM's, beside OpenAI's `reasoning`."""
OWN_NAMES: Final[Mapping[str, str]] = {
    "messages": "input",
    "reasoning_effort": "reasoning.effort",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
}
"""This API's names of parameters that a chat completion calls otherwise."""
_PASSED: Final = ("temperature", "top_p", "parallel_tool_calls")
CHECKS: Final[Mapping[str, Check]] = {
    **WITHOUT_EFFECT,
    **{name: openai.THINKING[name].expected for name in _THINKING},
    "reasoning": _reasoning,
    "input": _input,
    "instructions": Text().expected,
    "max_output_tokens": openai.CHAT["max_completion_tokens"].expected,
    **{name: openai.CHAT[name].expected for name in ("stream", "top_logprobs", *_PASSED)},
    "include": _include,
    "tools": schema,
    "tool_choice": schema,
    "text": _object,
    "metadata": metadata,
}
_NOT_STORED: Final = ("previous_response_id", "conversation")
_TOOL_DEFAULTS: Final = {"description": None, "parameters": None, "strict": False}


@dataclass(frozen=True, slots=True)
class ResponsesRequest:
    """A checked request.

    Attributes:
        call: the chat completion that answers it.
        echo: the request fields that the response repeats.
    """

    call: Call
    echo: Mapping[str, Any]


def parse(
    body: bytes, dropped: Dropped = drop_nothing, image_hosts: Collection[str] = ()
) -> ResponsesRequest:
    """Check a request body, without the parameters that `dropped` names for its model.

    Args:
        image_hosts: hosts whose images copies may fetch, see `read_images`.

    Raises:
        BadRequest: names a missing or malformed parameter, or one that needs stored responses.
        UnknownParameter: a parameter that is not on the list.
    """
    model, value = parse_object(body, dropped)
    for name in _NOT_STORED:
        if value.pop(name, None) is not None:
            raise BadRequest(f"{name} is not served: {_STATELESS}", param=name)
    given = check_parameters(CHECKS, ("input",), value)
    if given.get("stream_options") and not given.get("stream"):
        raise BadRequest("stream_options is only allowed with stream: true.", param="stream_options")
    messages, images = read_input(given["input"], given.get("instructions"), image_hosts)
    chat: dict[str, Any] = {
        "messages": messages,
        **{name: given[name] for name in (*_PASSED, *_THINKING) if name in given},
        **_effort(given),
        **_logprobs(given),
        **_tools(given),
        **_format(given.get("text") or {}),
    }
    if "max_output_tokens" in given:
        chat["max_completion_tokens"] = given["max_output_tokens"]
    stream = bool(given.get("stream"))
    call = Call(CHAT, model, stream, UsageView.FINAL, chat, user_of(value), images=images)
    return ResponsesRequest(call, _echo(given, value))


def _effort(given: Mapping[str, Any]) -> dict[str, Any]:
    effort = (given.get("reasoning") or {}).get("effort")
    return {} if effort is None else {"reasoning_effort": effort}


def _logprobs(given: Mapping[str, Any]) -> dict[str, Any]:
    if LOGPROBS not in given.get("include", ()) and not given.get("top_logprobs"):
        return {}
    return {"logprobs": True, "top_logprobs": given.get("top_logprobs", 0)}


def _tools(given: Mapping[str, Any]) -> dict[str, Any]:
    """Translate tools: flat in a response's request, below `function` in a chat's."""
    tools, chat = given.get("tools", []), dict[str, Any]()
    if not isinstance(tools, list) or len(tools) > MAX_TOOLS:
        raise BadRequest(f"tools must be a list of at most {MAX_TOOLS} functions.", param="tools")
    if tools:
        chat["tools"] = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools)]
    choice = given.get("tool_choice")
    if isinstance(choice, dict) and choice.keys() == {"type", "name"} and choice["type"] == "function":
        chat["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}}
    elif choice in ("none", "auto", "required"):
        chat["tool_choice"] = choice
    elif choice is not None:
        wanted = 'none, auto, required or {"type": "function", "name": "..."}'
        raise BadRequest(f"tool_choice must be {wanted}.", param="tool_choice")
    return chat


def _tool(tool: object, where: str) -> dict[str, Any]:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        raise BadRequest(f"{where}.type must be function: tools run at the client.", param=f"{where}.type")
    function = {name: item for name, item in tool.items() if name != "type" and item is not None}
    for name in function:
        if name not in ("name", "description", "parameters", "strict"):
            shown = f"{where}.{name[:64]}"
            raise UnknownParameter(f"{shown} is not served. Remove it.", param=shown)
    return {"type": "function", "function": function}


def _format(given: Mapping[str, Any]) -> dict[str, Any]:
    """Translate `text.format` to a chat's `response_format`."""
    if not given.keys() <= {"format", "verbosity"}:
        raise BadRequest("text must be an object of format and verbosity.", param="text")
    if given.get("verbosity") not in _VERBOSITIES:
        raise BadRequest("text.verbosity must be low, medium or high.", param="text.verbosity")
    form = given.get("format")
    if form is None:
        return {}
    kind = form.get("type") if isinstance(form, dict) else None
    if kind in ("text", "json_object") and len(form) == 1:
        return {} if kind == "text" else {"response_format": {"type": kind}}
    names = {"type", "name", "schema", "strict", "description"}
    if kind == "json_schema" and form.keys() <= names and {"name", "schema"} <= form.keys():
        inner = {name: item for name, item in form.items() if name != "type" and item is not None}
        return {"response_format": {"type": kind, "json_schema": inner}}
    raise BadRequest(
        "text.format must be of type text, json_object, or json_schema with name and schema.",
        param="text.format",
    )


def _echo(given: Mapping[str, Any], value: Mapping[str, Any]) -> dict[str, Any]:
    """Return every parameter with the value in force, as OpenAI's response lists them."""
    form = (given.get("text") or {}).get("format") or {"type": "text"}
    return {
        "background": False,
        "frequency_penalty": 0.0,
        "instructions": given.get("instructions"),
        "max_output_tokens": given.get("max_output_tokens"),
        "max_tool_calls": given.get("max_tool_calls"),
        "metadata": given.get("metadata", {}),
        "parallel_tool_calls": given.get("parallel_tool_calls", True),
        "presence_penalty": 0.0,
        "previous_response_id": None,
        "prompt_cache_key": _name(value, "prompt_cache_key"),
        "reasoning": {"effort": (given.get("reasoning") or {}).get("effort"), "summary": None},
        "safety_identifier": _name(value, "safety_identifier"),
        "service_tier": "default",
        "store": False,
        "temperature": given.get("temperature", 1.0),
        "text": {"format": form, "verbosity": "medium"},
        "tool_choice": given.get("tool_choice", "auto"),
        "tools": [{**_TOOL_DEFAULTS, **tool} for tool in given.get("tools", [])],
        "top_logprobs": given.get("top_logprobs", 0),
        "top_p": given.get("top_p", 1.0),
        "truncation": "disabled",
        "user": _name(value, "user"),
    }


def _name(value: Mapping[str, Any], name: str) -> str | None:
    given = value.get(name)
    return given[:512] if isinstance(given, str) else None
