"""Random requests of every kind that the worker's API accepts, by a few clients that sometimes hang up."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from contracts.adapters.reference import AdapterRef

CLIENTS: Final = 6
STUCK_SECONDS: Final = 120.0
"""A request of this traffic that takes this long is stuck."""
EXPECTED: Final = frozenset({200, 400, 429, 503, 504})
_WORDS: Final = ("one", "two", "red", "blue", "hello", "why", "ü")
_SCHEMA: Final = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
_TOOL: Final = {"type": "function", "function": {"name": "look_up", "parameters": _SCHEMA}}
_LOST: Final = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#/nowhere"}}}
_BAD: Final[Sequence[dict[str, Any]]] = (
    {"temperature": "hot"},
    {"n": 0},
    {"wibble": 1},
    {"max_tokens": 10**9},
    {"logit_bias": {"x": 1}},
    {"response_format": _LOST},
    {"structured_outputs": {"regex": "(" * 50}},
)


@dataclass
class Watch:
    """The observations of one run.

    Attributes:
        statuses: answers by HTTP status; our own hang-ups are counted separately.
        resident: the worker's resident memory over time, MiB.
        left: the worker's gauges after the traffic ended and some time passed.
        stuck: requests that took longer than `STUCK_SECONDS`.
    """

    statuses: Counter[int] = field(default_factory=Counter)
    hang_ups: int = 0
    stuck: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    resident: list[float] = field(default_factory=list)
    left: dict[str, int] = field(default_factory=dict)

    @property
    def growth(self) -> float:
        """Median resident memory in the last quarter relative to the second quarter."""
        quarter = max(1, len(self.resident) // 4)
        return statistics.median(self.resident[-quarter:]) / statistics.median(
            self.resident[quarter : 2 * quarter] or self.resident
        )


class Traffic:
    """Draws requests and sends them until the time is over."""

    def __init__(self, url: str, adapters: Sequence[AdapterRef], *, seed: int = 1) -> None:
        self._url, self._adapters = url, adapters
        self._draw = random.Random(seed)
        self._weights = [1 / (rank + 1) for rank in range(len(adapters))]
        self.watch = Watch()

    def body(self) -> tuple[str, dict[str, Any]]:
        """Return a path and a body: often plain, sometimes with other fields that the API accepts."""
        draw = self._draw
        words = [draw.choice(_WORDS) for _ in range(draw.randrange(1, 60))]
        # Half of all prompts share a prefix, to exercise the prefix cache.
        text = ("You are a helpful assistant. " * 4 if draw.random() < 0.5 else "") + " ".join(words)
        chat = draw.random() < 0.5
        prompt = {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
        body: dict[str, Any] = {"model": "base", "max_tokens": draw.randrange(1, 24), **prompt}
        if self._adapters and draw.random() < 0.6:
            [ref] = draw.choices(self._adapters, self._weights)
            body |= {"model": ref.name, "adapter": ref.to_dict()}
        body |= {"tenant": draw.choice("abc"), "cache_salt": draw.choice("xy")}
        for chance, extra in (
            (0.5, {"stream": True}),
            (0.15, {"n": draw.randrange(2, 4)}),
            (0.15, {"logprobs": True, "top_logprobs": 5} if chat else {"logprobs": 5}),
            (0.1, {"timeout": draw.choice((0.001, 0.3, 5.0))}),
            (0.1, {"priority": draw.randrange(-1, 3)}),
            (0.2, {"temperature": 0.8, "top_p": 0.9, "seed": draw.randrange(9)}),
            (0.1, {"frequency_penalty": 0.5, "repetition_penalty": 1.2, "logit_bias": {"5": -10}}),
            (0.05, dict(draw.choice(_BAD))),
        ):
            if draw.random() < chance:
                body |= extra
        return "/v1/chat/completions" if chat else "/v1/completions", body | self._constraint(chat)

    def _constraint(self, chat: bool) -> dict[str, Any]:
        kind = self._draw.random()
        if kind < 0.05:
            schema = {
                "name": f"s{self._draw.randrange(40)}",
                "schema": _SCHEMA | {"title": str(self._draw.random())},
            }
            return {"response_format": {"type": "json_schema", "json_schema": schema}}
        if kind < 0.08:
            return {"response_format": {"type": "json_object"}}
        if kind < 0.12 and chat:
            return {"tools": [_TOOL], "tool_choice": self._draw.choice(("auto", "required"))}
        return {}

    async def run(self, seconds: float) -> None:
        """Send requests from `CLIENTS` clients for `seconds`, with pauses between them."""
        until = time.monotonic() + seconds
        async with aiohttp.ClientSession() as session:
            await asyncio.gather(*[self._client(session, until) for _ in range(CLIENTS)])

    async def _client(self, session: aiohttp.ClientSession, until: float) -> None:
        while time.monotonic() < until:
            path, body = self.body()
            try:
                await asyncio.wait_for(self._send(session, path, body), STUCK_SECONDS)
            except TimeoutError:
                self.watch.stuck.append(json.dumps(body))
            except aiohttp.ClientError as error:
                self.watch.broken.append(f"{error!r}: {json.dumps(body)}")
            await asyncio.sleep(self._draw.random() * 0.2)

    async def _send(self, session: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> None:
        hang_up = self._draw.random() < 0.1
        async with session.post(self._url + path, json=body) as answer:
            if hang_up:
                await answer.content.read(1)
                answer.close()
                self.watch.hang_ups += 1
                return
            content = await answer.read()
        self.watch.statuses[answer.status] += 1
        if answer.status not in EXPECTED:
            self.watch.broken.append(f"{answer.status} {content[:300]!r}: {json.dumps(body)}")
        streamed = answer.status == 200 and body.get("stream") is True
        if streamed and not content.endswith(b"data: [DONE]\n\n") and b'"error"' not in content:
            self.watch.broken.append(f"cut stream {content[-300:]!r}: {json.dumps(body)}")
