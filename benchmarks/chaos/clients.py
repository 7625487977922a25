"""Clients that record their observations: streams, hang-ups, whole answers, several choices, repeats."""

from __future__ import annotations

import asyncio
import json
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from benchmarks.chaos.plant import KEY, MODEL
from benchmarks.processes import Killable

_KINDS: Final = {"stream": 66, "hang-up": 12, "choices": 6, "whole": 8, "failing": 4, "repeat": 4}
"""Percentage of each kind of request."""
_DELAY: Final = 0.05
_AGAIN_SECONDS: Final = 0.1


@dataclass(slots=True)
class StreamRecord:
    """A client's record of one answer with HTTP 200.

    Attributes:
        gateway: index of the gateway that answered.
        asked: tokens that the backend should generate.
        started: `time.monotonic()` when it was sent.
        tokens: `time.monotonic()` as each token arrived.
        end: `whole`, `error` (an error event), `cut` (the connection broke) or `hang-up` (by the client).
        ended: `time.monotonic()` at its end.
        replayed: it was a stored answer of an earlier request with the same key.
    """

    request_id: str
    gateway: int
    asked: int
    started: float
    replayed: bool = False
    tokens: list[float] = field(default_factory=list)
    end: str = "cut"
    ended: float = 0.0


class Clients:
    """`at_once` concurrent clients that send `streams` requests; `ended` is called after each.

    Requests that were refused, or broke before the headers, are sent again and counted separately.
    """

    def __init__(
        self, gateways: Sequence[Killable], streams: int, at_once: int, seed: int, ended: Callable[[], None]
    ) -> None:
        self.seen: list[StreamRecord] = []
        self.refused: Counter[str] = Counter()
        self._gateways, self._streams, self._at_once = gateways, streams, at_once
        self._rng = random.Random(seed)
        self._left = streams
        self._ended = ended

    async def run(self) -> None:
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=120)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            await asyncio.gather(*(self._client(session) for _ in range(self._at_once)))

    async def _client(self, session: aiohttp.ClientSession) -> None:
        while self._left > 0:
            self._left -= 1
            kind = self._rng.choices(list(_KINDS), list(_KINDS.values()))[0]
            key = str(uuid.UUID(int=self._rng.getrandbits(128)))
            body, leave_after = self._request(kind)
            for _ in range(2 if kind == "repeat" else 1):
                await self._answered(session, body, key if kind == "repeat" else "", leave_after)
            self._ended()

    def _request(self, kind: str) -> tuple[dict[str, Any], int]:
        """Return a body, and the token after which the client hangs up (0 for never)."""
        tokens = self._rng.randint(4, 90)
        plan: dict[str, Any] = {"tokens": tokens, "delay": _DELAY}
        if kind == "failing":
            plan["fail"] = self._rng.choice(["event", "cut"])
        body: dict[str, Any] = {
            "model": MODEL,
            "stream": kind != "whole",
            "max_tokens": tokens,
            "messages": [{"role": "user", "content": json.dumps(plan)}],
        }
        if kind == "choices":
            body["n"] = 2
        return body, self._rng.randint(1, tokens) if kind == "hang-up" else 0

    async def _answered(self, *request: Any) -> None:
        while True:
            if await self._send(*request):
                return
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _send(
        self, session: aiohttp.ClientSession, body: dict[str, Any], key: str, leave_after: int
    ) -> bool:
        """Send once; return False if no answer began."""
        number = self._rng.randrange(len(self._gateways))
        url = f"http://127.0.0.1:{self._gateways[number].port}/v1/chat/completions"
        headers = {"authorization": f"Bearer {KEY}"} | ({"idempotency-key": key} if key else {})
        asked = json.loads(body["messages"][0]["content"])["tokens"]
        started = time.monotonic()
        seen: StreamRecord | None = None
        try:
            async with session.post(url, json=body, headers=headers) as answer:
                if answer.status != 200:
                    self.refused[str(answer.status)] += 1
                    # 409: the gateway that held this key is dead, and the key stays locked for a minute.
                    return answer.status == 409
                replayed = "idempotent-replayed" in answer.headers
                seen = StreamRecord(answer.headers["x-request-id"], number, asked, started, replayed)
                await _read(answer, seen, leave_after)
        except (aiohttp.ClientError, OSError):
            if seen is None or not (seen.tokens or body["stream"]):
                self.refused["no answer"] += 1
                return False
        seen.ended = time.monotonic()
        self.seen.append(seen)
        return True


def _shows(line: bytes) -> bool:
    """Return True if an event has text: a worker's first event has the role, its last the finish reason."""
    if b'"choices":[{' not in line:
        return False
    choices = json.loads(line.removeprefix(b"data:"))["choices"]
    return any(choice["delta"].get("content") for choice in choices)


async def _read(answer: aiohttp.ClientResponse, seen: StreamRecord, leave_after: int) -> None:
    if not answer.content_type.startswith("text/event-stream"):
        usage = (await answer.json())["usage"]
        seen.tokens = [time.monotonic()] * usage["completion_tokens"]
        seen.end = "whole"
        return
    async for line in answer.content:
        if line.startswith(b'data: {"error"'):
            seen.end = "error"
        elif line.startswith(b"data: [DONE]"):
            seen.end = "whole"
        elif _shows(line):
            seen.tokens.append(time.monotonic())
            if len(seen.tokens) == leave_after:
                seen.end = "hang-up"
                return
