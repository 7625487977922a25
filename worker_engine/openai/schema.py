"""OpenAI's request bodies, checked field by field: nothing unknown or ill-typed gets through silently."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from worker_engine.errors import InvalidRequest
from worker_engine.openai import origin
from worker_engine.protocol import AdapterRef, Origin, ProtocolError

MAX_STOP_STRINGS: Final = 16
_ROLES: Final = ("system", "developer", "user", "assistant")
_NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False, 0),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "store": (False,),
}
"""Parameters of OpenAI's that this worker knows but serves only at their default."""
_IGNORED: Final = ("user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key")
"""Parameters that do not touch generation."""
_SHARED: Final = (
    "model", "adapter", "max_tokens", "temperature", "top_p", "seed", "stop", "stream", "stream_options",
    "ignore_eos", *origin.FIELDS,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A request body after checking.

    Attributes:
        messages: a chat request's messages, content joined to text; None for a completion.
        prompt: a completion's prompt, text or token ids.
        max_tokens: None takes the endpoint's default.
    """

    model: str
    adapter: AdapterRef | None
    messages: tuple[dict[str, str], ...] | None
    prompt: str | tuple[int, ...]
    max_tokens: int | None
    temperature: float
    top_p: float
    seed: int | None
    stop: tuple[str, ...]
    ignore_eos: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool
    origin: Origin


def parse(body: bytes, *, chat: bool) -> CompletionRequest:
    """Raises InvalidRequest whose `param` names the field at fault."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidRequest("the body must be a JSON object")
    fields = _Fields({name: item for name, item in value.items() if item is not None})
    fields.refuse_unknown(("messages", "max_completion_tokens") if chat else ("prompt",))
    options = fields.get("stream_options", {}, dict, "an object")
    if unknown := sorted(set(options) - {"include_usage", "continuous_usage_stats", "include_obfuscation"}):
        raise InvalidRequest(f"stream_options.{unknown[0]} is not known", param="stream_options")
    stream = fields.flag("stream")
    if options and not stream:
        raise InvalidRequest("stream_options needs stream: true", param="stream_options")
    flags = _Fields(options, "stream_options.")
    max_tokens = fields.whole("max_tokens", low=1)
    adapter = _adapter(fields.get("adapter", {}, dict, "an object"))
    return CompletionRequest(
        model=fields.get("model", None, str, "a string"),
        adapter=adapter,
        messages=_messages(fields.get("messages", None, list, "a list")) if chat else None,
        prompt="" if chat else _prompt(fields.get("prompt", None, (str, list), "a string or token ids")),
        max_tokens=(fields.whole("max_completion_tokens", low=1) if chat else None) or max_tokens,
        temperature=fields.number("temperature", 1.0, 0.0, 2.0),
        top_p=fields.number("top_p", 1.0, 0.0, 1.0, open_low=True),
        seed=fields.whole("seed", low=-(2**63)),
        stop=_stop(fields.get("stop", [], (str, list), "a string or a list of strings")),
        ignore_eos=fields.flag("ignore_eos"),
        stream=stream,
        include_usage=flags.flag("include_usage"),
        continuous_usage=flags.flag("continuous_usage_stats"),
        origin=origin.parse_origin(value, adapter),
    )


class _Fields:
    """Typed access to a body's fields."""

    def __init__(self, values: Mapping[str, Any], prefix: str = "") -> None:
        self._values, self._prefix = values, prefix

    def refuse_unknown(self, own: tuple[str, ...]) -> None:
        for name, item in self._values.items():
            if name in _NEUTRAL:
                # `is` on the type: in Python, True equals 1 and False equals 0.
                if not any(item == neutral and type(item) is type(neutral) for neutral in _neutral(name)):
                    raise InvalidRequest(
                        f"{name} is served only as {json.dumps(_NEUTRAL[name][0])}", param=name
                    )
            elif name not in _SHARED and name not in own and name not in _IGNORED:
                raise InvalidRequest(f"{name} is not a known parameter", param=name)

    def get(self, name: str, default: object, kind: type | tuple[type, ...], wanted: str) -> Any:
        value = self._values.get(name, default)
        if value is None:
            raise InvalidRequest(f"{self._prefix}{name} is required", param=self._prefix + name)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise InvalidRequest(
                f"{self._prefix}{name} must be {wanted}, got {_show(value)}", param=self._prefix + name
            )
        return value

    def flag(self, name: str) -> bool:
        return bool(self.get(name, False, bool, "true or false"))

    def whole(self, name: str, *, low: int) -> int | None:
        if name not in self._values:
            return None
        value: int = self.get(name, None, int, "an integer")
        if not low <= value < 2**63:
            raise InvalidRequest(f"{name} must be at least {low}, got {value}", param=name)
        return value

    def number(self, name: str, default: float, low: float, high: float, *, open_low: bool = False) -> float:
        value: float = self.get(name, default, (int, float), "a number")
        if not math.isfinite(value) or not low <= value <= high or (open_low and value == low):
            least = f"above {low:g}" if open_low else f"{low:g}"
            raise InvalidRequest(f"{name} must be {least} to {high:g}, got {value}", param=name)
        return float(value)


def _neutral(name: str) -> tuple[object, ...]:
    values = _NEUTRAL[name]
    return (*values, *(float(value) for value in values if type(value) is int))


def _show(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _adapter(value: Mapping[str, Any]) -> AdapterRef | None:
    if not value:
        return None
    try:
        return AdapterRef.from_dict(value)
    except ProtocolError as error:
        raise InvalidRequest(str(error), param="adapter") from error


def _prompt(value: str | list[Any]) -> str | tuple[int, ...]:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], (str, list)):
        value = value[0]
    if isinstance(value, str):
        return value
    if not all(type(item) is int for item in value):
        raise InvalidRequest("prompt must be one string or one list of token ids", param="prompt")
    return tuple(value)


def _stop(value: str | list[Any]) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value
    if len(stops) > MAX_STOP_STRINGS or not all(isinstance(item, str) and item for item in stops):
        raise InvalidRequest(f"stop must be up to {MAX_STOP_STRINGS} non-empty strings", param="stop")
    return tuple(stops)


def _messages(value: list[Any]) -> tuple[dict[str, str], ...]:
    if not value:
        raise InvalidRequest("messages must hold at least one message", param="messages")
    return tuple(_message(item, f"messages[{index}]") for index, item in enumerate(value))


def _message(value: object, where: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{where} must be an object, got {_show(value)}", param=where)
    present = {name for name, item in value.items() if item not in (None, [])}
    if unknown := sorted(present - {"role", "content", "name"}):
        raise InvalidRequest(f"{where}.{unknown[0]} is not supported", param=f"{where}.{unknown[0]}")
    role = value.get("role")
    if role not in _ROLES:
        raise InvalidRequest(
            f"{where}.role must be one of {', '.join(_ROLES)}, got {_show(role)}", param=f"{where}.role"
        )
    return {"role": "system" if role == "developer" else role, "content": _text(value.get("content"), where)}


def _text(content: object, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise InvalidRequest(
            f"{where}.content must be a string or a list of text parts", param=f"{where}.content"
        )
    texts: list[str] = []
    for index, part in enumerate(content):
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            name = f"{where}.content[{index}]"
            raise InvalidRequest(f'{name} must be {{"type": "text", "text": "..."}}', param=name)
        texts.append(text)
    return "".join(texts)
