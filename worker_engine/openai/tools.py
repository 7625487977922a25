"""`tools`, `tool_choice` and `parallel_tool_calls`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from contracts.openai.parameters import MAX_TOOLS
from worker_engine.errors import InvalidRequest
from worker_engine.openai.fields import Fields, show
from worker_engine.text.tool_calls.base import Function

_NO_PARAMETERS: Final = {"type": "object", "properties": {}, "additionalProperties": False}
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of a request and how they may be called.

    Attributes:
        tools: for the chat template, as the caller wrote them but for parameters that are missing.
        functions: those that may be called: all, or the one that `tool_choice` names.
        required: the answer must be calls; a grammar holds the model to it.
        named: `tool_choice` names a function.
        parallel: several calls may be made in one answer.
    """

    tools: tuple[Mapping[str, Any], ...]
    functions: tuple[Function, ...]
    required: bool
    named: bool
    parallel: bool


def parse_tools(fields: Fields) -> ToolUse | None:
    """None when there are no tools, or none may be called. Raises InvalidRequest naming the field."""
    tools: list[Any] = fields.get("tools", [], list, "a list of tools")
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest(f"tools must hold at most {MAX_TOOLS} tools, got {len(tools)}", param="tools")
    functions = {item.name: item for item in (_function(tool, i) for i, tool in enumerate(tools))}
    if len(functions) < len(tools):
        raise InvalidRequest("tools must have names that differ", param="tools")
    parallel = fields.flag("parallel_tool_calls", default=True)
    choice = fields.get("tool_choice", "auto", (str, dict), "none, auto, required or a function")
    named = _named(choice) if isinstance(choice, dict) else None
    if named is None and choice not in ("none", "auto", "required"):
        raise fields.wrong("tool_choice", "none, auto, required or a function")
    if named is not None and named not in functions:
        raise InvalidRequest(f"tool_choice names {named}, which is not among tools", param="tool_choice")
    if choice == "required" and not functions:
        raise InvalidRequest("tool_choice is required, but there are no tools", param="tool_choice")
    if not functions or choice == "none":
        return None
    return ToolUse(
        tools=tuple(_with_parameters(tool) for tool in tools),
        functions=tuple(functions.values()) if named is None else (functions[named],),
        required=choice != "auto",
        named=named is not None,
        parallel=parallel and named is None,
    )


def _with_parameters(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the tool as templates take it: some look into parameters without a test that they exist."""
    function = tool["function"]
    if function.get("parameters") is not None:
        return tool
    return {**tool, "function": {**function, "parameters": {"type": "object", "properties": {}}}}


def _named(choice: Mapping[str, Any]) -> str:
    outer = Fields(choice, "tool_choice.")
    outer.refuse_others(("type", "function"))
    if outer.text("type") != "function":
        raise outer.wrong("type", "function")
    inner = Fields(outer.get("function", None, dict, "an object"), "tool_choice.function.")
    inner.refuse_others(("name",))
    return inner.text("name")


def _function(value: object, index: int) -> Function:
    where = f"tools[{index}]"
    if not isinstance(value, dict):
        raise InvalidRequest(f"{where} must be an object, got {show(value)}", param=where)
    outer = Fields(value, f"{where}.")
    outer.refuse_others(("type", "function"))
    if outer.text("type") != "function":
        raise outer.wrong("type", "function")
    inner = Fields(outer.get("function", None, dict, "an object"), f"{where}.function.")
    inner.refuse_others(("name", "description", "parameters", "strict"))
    name = inner.text("name")
    if _NAME.fullmatch(name) is None:
        raise inner.wrong("name", "1 to 64 letters, digits, underscores or hyphens")
    inner.text("description", "")
    given = inner.get("parameters", {}, dict, "a JSON schema as an object")
    return Function(name, _parameters(given), strict=inner.flag("strict"))


def _parameters(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of an object; without properties it takes no arguments, as at OpenAI."""
    if not schema or (schema.get("properties") == {} and schema.keys() <= {"type", "properties", "$schema"}):
        return _NO_PARAMETERS
    return schema if "type" in schema or "$ref" in schema else {"type": "object", **schema}
