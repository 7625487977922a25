"""Translates a response's input items to a chat's messages."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from contracts.openai.parameters import MAX_MESSAGES
from gateway.api.images import DETAILS, Image, check_count, read_parts
from gateway.errors import BadRequest

_ROLES: Final = frozenset({"user", "assistant", "system", "developer"})
_TEXTS: Final = frozenset({"input_text", "output_text", "text"})
_ECHOED: Final = frozenset({"id", "status", "phase", "caller", "namespace", "async", "created_by"})
"""Fields of earlier answers' items that a client sends back; chats have no equivalent."""
_MESSAGE: Final = _ECHOED | {"type", "role", "content"}
_CALL: Final = _ECHOED | {"type", "call_id", "name", "arguments", "parsed_arguments"}
_IMAGE: Final = frozenset({"type", "image_url", "detail", "file_id"})
_OUTPUT: Final = _ECHOED | {"type", "call_id", "output", "name"}

Message = dict[str, Any]


def read_input(
    value: str | list[Any], instructions: str | None, image_hosts: Collection[str] = ()
) -> tuple[list[Message], tuple[Image, ...]]:
    """Return the messages for an `input`, after the instructions, and the images in them.

    Consecutive calls, or calls and the assistant's text, become one message, as chat templates expect.

    Args:
        image_hosts: hosts whose images copies may fetch, see `read_images`.

    Raises:
        BadRequest: naming the item at fault.
    """
    messages: list[Message] = []
    images: list[Image] = []
    thought = ""
    if instructions:
        messages.append({"role": "system", "content": instructions})
    if isinstance(value, str):
        return [*messages, {"role": "user", "content": value}], ()
    if not 0 < len(value) <= MAX_MESSAGES:
        raise BadRequest(f"input must be a string or 1 to {MAX_MESSAGES} items.", param="input")
    for index, item in enumerate(value):
        where, count = f"input[{index}]", len(messages)
        # A call after a thought begins a message of its own, which the thought belongs to.
        _add(messages, item, where, joins=not thought)
        if len(messages) > count:
            name = "output" if messages[-1]["role"] == "tool" else "content"
            images += read_parts(messages[-1]["content"], f"{where}.{name}", image_hosts)
            check_count(images, "input")
        if isinstance(item, dict) and item.get("type") == "reasoning":
            thought += _thought(item)
        elif thought and len(messages) > count:
            if messages[-1]["role"] == "assistant":
                # vLLM's templates read the second name, older servers' the first.
                messages[-1] |= {"reasoning_content": thought, "reasoning": thought}
            thought = ""
    if not messages:
        raise BadRequest("input must hold a message, not reasoning alone.", param="input")
    return messages, tuple(images)


def _add(messages: list[Message], item: object, where: str, *, joins: bool) -> None:
    if not isinstance(item, dict):
        raise BadRequest(f"{where} must be an object.", param=where)
    kind = item.get("type", "message")
    if kind == "message":
        messages.append(_message(item, where))
    elif kind == "function_call":
        call = _call(item, where)
        if joins and messages and messages[-1]["role"] == "assistant":
            messages[-1].setdefault("tool_calls", []).append(call)
        else:
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
    elif kind == "function_call_output":
        messages.append(_output(item, where))
    elif kind == "reasoning":
        return  # its thought, if it has one, goes with the message that follows
    elif kind == "item_reference":
        raise BadRequest(
            f"{where}: item_reference is not served, since responses are not stored. Send the item itself.",
            param=where,
        )
    else:
        served = "message, function_call, function_call_output or reasoning"
        raise BadRequest(f"{where}.type must be {served}.", param=f"{where}.type")


def _thought(item: Mapping[str, Any]) -> str:
    """Return the thought that a reasoning item holds; other models' items hold a summary at most."""
    parts = item.get("content")
    found = [part.get("text") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    return "".join(text for text in found if isinstance(text, str))


def _message(item: Mapping[str, Any], where: str) -> Message:
    _refuse_others(item, _MESSAGE, where)
    role = item.get("role")
    if role not in _ROLES:
        raise BadRequest(f"{where}.role must be {' or '.join(sorted(_ROLES))}.", param=f"{where}.role")
    content = item.get("content")
    if role == "assistant" and content == []:
        # The answer ended before its first token.
        content = ""
    return {"role": role, "content": _content(content, f"{where}.content")}


def _call(item: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    _refuse_others(item, _CALL, where)
    function = {"name": _string(item, "name", where), "arguments": ""}
    if item.get("arguments") is not None:
        function["arguments"] = _string(item, "arguments", where)
    return {"id": _string(item, "call_id", where), "type": "function", "function": function}


def _output(item: Mapping[str, Any], where: str) -> Message:
    _refuse_others(item, _OUTPUT, where)
    content = _content(item.get("output"), f"{where}.output")
    return {"role": "tool", "tool_call_id": _string(item, "call_id", where), "content": content}


def _content(content: object, where: str) -> str | list[dict[str, Any]]:
    """Return the text; a chat's parts if there is an image among them."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise BadRequest(f"{where} must be a string or a list of text and image parts.", param=where)
    parts = [_part(part, f"{where}[{index}]") for index, part in enumerate(content)]
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _part(part: object, where: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(part, dict) and kind == "input_image":
        return _image(part, where)
    text = part.get("text") if isinstance(part, dict) and kind in _TEXTS else None
    if isinstance(part, dict) and kind == "refusal":
        text = part.get("refusal")
    if not isinstance(text, str):
        served = '{"type": "input_text", "text": "..."} or {"type": "input_image", "image_url": "..."}'
        raise BadRequest(f"{where} must be {served}: only text and images are read.", param=where)
    return {"type": "text", "text": text}


def _image(part: Mapping[str, Any], where: str) -> dict[str, Any]:
    if part.get("file_id") is not None:
        raise BadRequest(f"{where}: file_id is not served. Send the image in image_url.", param=where)
    _refuse_others(part, _IMAGE, where)
    detail = part.get("detail") or "auto"
    if detail not in DETAILS:
        raise BadRequest(f"{where}.detail must be one of {', '.join(DETAILS)}.", param=f"{where}.detail")
    url = _string(part, "image_url", where)
    return {"type": "image_url", "image_url": {"url": url, "detail": detail}}


def _string(item: Mapping[str, Any], name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str) or (not value and name != "arguments"):
        raise BadRequest(f"{where}.{name} must be a non-empty string.", param=f"{where}.{name}")
    return value


def _refuse_others(item: Mapping[str, Any], known: frozenset[str], where: str) -> None:
    for name, value in item.items():
        if name not in known and value is not None:
            shown = f"{where}.{name[:64]}"
            raise BadRequest(f"{shown} is not served. Remove it.", param=shown)
