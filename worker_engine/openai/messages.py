"""A chat's messages, checked and in the form that chat templates take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from contracts.openai.parameters import MAX_MESSAGES
from worker_engine.errors import InvalidRequest
from worker_engine.openai.fields import Fields, show

_ROLES: Final = ("system", "developer", "user", "assistant", "tool")
_OWN: Final[Mapping[str, tuple[str, ...]]] = {
    "assistant": ("tool_calls", "refusal"),
    "tool": ("tool_call_id",),
}
_ECHOED: Final = ("annotations", "images", "provider_specific_fields", "thinking_blocks")
_THOUGHT: Final = ("reasoning_content", "reasoning")
"""Names of an earlier answer's thought; templates know the first, and decide which thoughts they show."""
_CARRIED: Final = (*_ECHOED, *_THOUGHT)
"""What clients' objects of an answer carry when they come back as history."""
MESSAGE_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": {"enum": list(_ROLES)},
        "content": {"type": ["string", "array", "null"]},
        "name": {"type": "string"},
        "tool_calls": {"type": "array", "items": {"type": "object"}},
        "tool_call_id": {"type": "string"},
        "refusal": {"type": ["string", "null"]},
        **{name: {} for name in _CARRIED},
    },
    "additionalProperties": False,
}
"""What `parse_messages` takes, as far as a JSON schema tells it."""

Message = Mapping[str, Any]


def parse_messages(value: list[Any]) -> tuple[Message, ...]:
    """Raises InvalidRequest whose `param` names the message and field at fault."""
    if not 0 < len(value) <= MAX_MESSAGES:
        raise InvalidRequest(f"messages must hold 1 to {MAX_MESSAGES} messages", param="messages")
    return tuple(_message(item, f"messages[{index}]") for index, item in enumerate(value))


def use_tools(messages: tuple[Message, ...]) -> int | None:
    """The index of the first message that only a template with tools can render."""
    wants = (item["role"] == "tool" or "tool_calls" in item for item in messages)
    return next((index for index, needed in enumerate(wants) if needed), None)


def _message(value: object, where: str) -> Message:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{where} must be an object, got {show(value)}", param=where)
    fields = Fields({name: item for name, item in value.items() if item != []}, f"{where}.")
    role = value.get("role")
    if role not in _ROLES:
        raise fields.wrong("role", f"one of {', '.join(_ROLES)}")
    echoed = _CARRIED if role == "assistant" else ()
    fields.refuse_others(("role", "content", "name", *_OWN.get(role, ()), *echoed))
    message = {"role": "system" if role == "developer" else role}
    thoughts = [value[name] for name in _THOUGHT if role == "assistant" and isinstance(value.get(name), str)]
    if thoughts:
        message["reasoning_content"] = thoughts[0]
    if "tool_calls" in fields:
        calls = fields.get("tool_calls", None, list, "a list")
        message["tool_calls"] = [_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)]
    if role == "tool":
        message["tool_call_id"] = fields.text("tool_call_id")
    refusal = fields.text("refusal", "")
    if "content" in fields or not (refusal or "tool_calls" in fields):
        return message | {"content": _text(value.get("content"), where, refusals=role == "assistant")}
    return message | {"content": refusal}


def _call(value: object, where: str) -> Mapping[str, Any]:
    """A call in the assistant's history; templates want the arguments as an object."""
    if not isinstance(value, dict):
        raise InvalidRequest(f"{where} must be an object, got {show(value)}", param=where)
    fields = Fields(value, f"{where}.")
    fields.refuse_others(("id", "type", "function", "index", *_CARRIED))
    function = Fields(fields.get("function", None, dict, "an object"), f"{where}.function.")
    function.refuse_others(("name", "arguments"))
    given = function.get("arguments", "", (str, dict), "a JSON object as a string")
    return {
        "id": fields.text("id"),
        "type": "function",
        "function": {
            "name": function.text("name"),
            "arguments": given if isinstance(given, dict) else _arguments(given),
        },
    }


def _arguments(text: str) -> Mapping[str, Any]:
    """Return the arguments of a call as templates take them, also where a limit cut the call short.

    Text that is no object stands under `arguments`: many templates go over the items of an object.
    """
    try:
        value = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        value = text
    if value is None:
        return {}
    return value if isinstance(value, dict) else {"arguments": text}


def _text(content: object, where: str, *, refusals: bool) -> str:
    """Join the text parts; an assistant's `refusal` parts are its text too."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise InvalidRequest(
            f"{where}.content must be a string or a list of text parts", param=f"{where}.content"
        )
    texts: list[str] = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        known = kind == "text" or (refusals and kind == "refusal")
        text = part.get(kind) if known else None
        if not isinstance(text, str):
            name = f"{where}.content[{index}]"
            raise InvalidRequest(f'{name} must be {{"type": "text", "text": "..."}}', param=name)
        texts.append(text)
    return "".join(texts)
