"""The usage event: the gateway's report of one attempt to the control plane.

The control plane derives the event's validation and its table's columns from `UsageEvent`. A new field
needs a line in `UsageEvent`, one in the Django model with its migration, and a value in the gateway's
meter.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, Self, cast, get_args

from contracts.errors import ContractError

UsageStatus = Literal["ok", "error", "client_error", "cancelled", "interrupted"]
"""`error`: the copy or the gateway failed, timeouts included; `client_error`: the request is at fault."""
MAX_PROMPT_ADAPTERS: Final = 64
"""Most prompts of a call that names an adapter for each."""
_ID_LENGTH: Final = 36
"""Characters of a UUID."""
STATUSES: Final[tuple[UsageStatus, ...]] = get_args(UsageStatus)
ADDED: Final[Mapping[str, Any]] = {"itl_ms": None, "reasoning_tokens": 0, "images": 0, "operation": ""}
"""Fields that events of older gateways lack, and their values then."""

EventId = str
"""UUIDv7."""
Name = str
"""At most 200 characters, without NUL."""
Attempt = int
"""Number of an attempt, 0 or more, below 2**31."""
TokenCount = int
"""0 or more, below 2**40."""
Milliseconds = float
"""Duration, below 1e12."""
UnixMilliseconds = int
"""Point in time, 0 or more, below 2**62."""


@dataclass
class UsageEvent:
    """One attempt of one request, as the gateway saw it, without prices.

    The names of the fields' types tell the control plane which values to accept.
    Neither frozen nor with slots: creation is four times and serialization three times as fast (ADR 5).

    Attributes:
        event_id: its time part gives the partition day.
        requested_model: what the client wrote; `alias` and `arm` say how it was resolved.
        arm: of a split alias; "" for none.
        adapter: engine name, or "" for the base model.
        operation: the endpoint's name: chat (also for responses), completions, embeddings, score, rerank or
            classify; "" from older gateways.
        backend: kind of the backend; `endpoint` the copy's id.
        prompt_tokens: the cached ones included.
        reasoning_tokens: those of the thought before the answer, among the completion tokens.
        images: images in the prompt, whose tokens are among the prompt's.
        estimated: True when the backend reported no usage and the gateway counted instead.
        ttft_ms: from request to first token; None if no token came.
        itl_ms: mean inter-token latency: time from the first token to the last, divided by the tokens after
            the first; None with fewer than two tokens, or if all came at once.
    """

    event_id: EventId
    tenant: Name
    project: Name
    key_id: Name
    request_id: Name
    attempt: Attempt
    requested_model: Name
    alias: Name
    arm: Name
    adapter: Name
    base_model: Name
    operation: Name
    backend: Name
    endpoint: Name
    status: UsageStatus
    error_code: Name
    prompt_tokens: TokenCount
    cached_tokens: TokenCount
    completion_tokens: TokenCount
    reasoning_tokens: TokenCount
    images: TokenCount
    estimated: bool
    ttft_ms: Milliseconds | None
    itl_ms: Milliseconds | None
    duration_ms: Milliseconds
    started_at: UnixMilliseconds
    gateway_id: Name

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), separators=(",", ":"))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, except those of ADDED at their defaults: an older control plane refuses them."""
        unset = [name for name, default in ADDED.items() if getattr(self, name) == default]
        return {name: item for name, item in vars(self).items() if name not in unset}

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Parse an event. Raises ContractError naming missing, unknown or mistyped fields."""
        try:
            value = json.loads(text)
        except ValueError as error:
            raise ContractError(f"a usage event is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise ContractError("a usage event must be an object")
        value = {**ADDED, **value}
        names = {item.name for item in fields(cls)}
        if wrong := sorted(names ^ set(value)):
            raise ContractError(f"a usage event lacks or does not know: {', '.join(wrong)}")
        for item in fields(cls):
            shown, accepted = _EVENT_TYPES[cast(str, item.type)]
            if not isinstance(value[item.name], accepted):
                raise ContractError(
                    f"usage event field {item.name} must be {shown}, got {value[item.name]!r}"
                )
        return cls(**value)


_EVENT_TYPES: Final[Mapping[str, tuple[str, tuple[type, ...]]]] = {
    **dict.fromkeys(("EventId", "Name"), ("str", (str,))),
    **dict.fromkeys(("Attempt", "TokenCount", "UnixMilliseconds"), ("int", (int,))),
    "bool": ("bool", (bool,)),
    "Milliseconds": ("float", (int, float)),
    "Milliseconds | None": ("float | None", (int, float, type(None))),
    "UsageStatus": ("UsageStatus", (str,)),
}
"""By the name of a field's type: the type in error messages, and the types of accepted values."""


def part_id(call_id: str, index: int) -> str:
    """Return the request id of prompt `index` of a call that names an adapter for each prompt."""
    return f"{call_id}-{index}"


def call_id(request_id: str) -> str:
    """Return the id of the call that a prompt's request belongs to; another request's id is its own."""
    call, _, index = request_id.rpartition("-")
    return call if len(call) == _ID_LENGTH and index.isdecimal() else request_id


def request_ids(call_id: str) -> list[str]:
    """Return the request ids that events of a call can have: its own, and those of its prompts."""
    if len(call_id) != _ID_LENGTH:
        return [call_id]
    return [call_id, *(part_id(call_id, index) for index in range(MAX_PROMPT_ADAPTERS))]


def uuid7() -> str:
    """Return a time-ordered UUID (RFC 9562, version 7): 48 bits of Unix milliseconds, then random bits."""
    # The id must be unique, not secret, so it avoids a system call; a fork reseeds the generator.
    noise = random.getrandbits(74)
    milliseconds = time.time_ns() // 1_000_000
    text = f"{milliseconds:012x}7{noise >> 62:03x}{1 << 63 | noise & (1 << 62) - 1:016x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
