"""Closed-loop callers: each streams answers of the known adapters one after another, and checks them."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

_BODY: Final[dict[str, Any]] = {
    "prompt": "hello",
    "max_tokens": 8,
    "temperature": 0,
    "stream": True,
    "ignore_eos": True,
}
_TIMEOUT: Final = aiohttp.ClientTimeout(total=60)


class AnswerError(Exception):
    """A request was refused, broken off, or answered by another version's or adapter's weights."""


@dataclass(slots=True)
class ExpectedAnswers:
    """A model name to request, and its valid answers.

    Attributes:
        model: the name in requests.
        texts: answers of the versions that may serve it now, by version.
        moved: `time.monotonic()` at which its alias's move to the newest was confirmed; 0 before.
    """

    model: str
    texts: dict[int, str]
    moved: float = 0.0


@dataclass(slots=True)
class Tally:
    """The results of the requests.

    Attributes:
        requests: by phase, including failed ones.
        failures: one line each.
        lag: longest time in seconds after a confirmed move at which a request began that the old version
            answered.
    """

    requests: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    lag: float = 0.0


class Callers:
    """`count` concurrent callers in their own thread. The run updates `known` while they run."""

    def __init__(self, url: str, key: str, count: int, *, seed: int = 1) -> None:
        self.tally, self.phase = Tally(), ""
        self.known: dict[str, ExpectedAnswers] = {}
        self._url, self._key, self._count = f"{url}/v1/completions", key, count
        self._chosen, self._over = random.Random(seed), False  # a load, no secret
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))

    def __enter__(self) -> Callers:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._thread.join()
        self._loop.close()

    def learn(self, model: str) -> str:
        """Return the first answer of a new version; the request counts like any other."""
        return asyncio.run_coroutine_threadsafe(self._learn(model), self._loop).result()

    async def _learn(self, model: str) -> str:
        async with self._session() as session:
            self.tally.requests[self.phase] += 1
            try:
                return await self._text(session, model)
            except (AnswerError, aiohttp.ClientError, OSError, TimeoutError) as error:
                self.tally.failures.append(f"{self.phase}: {model}: {error!r}")
                return ""

    async def _run(self) -> None:
        async with self._session() as session:
            await asyncio.gather(*(self._caller(session) for _ in range(self._count)))

    async def _caller(self, session: aiohttp.ClientSession) -> None:
        while not self._over:
            names = list(self.known)
            if not names:
                await asyncio.sleep(0.05)
                continue
            if (asked := self.known.get(self._chosen.choice(names))) is not None:
                await self._ask(session, asked)

    async def _ask(self, session: aiohttp.ClientSession, asked: ExpectedAnswers) -> None:
        # Copy the texts first: a new text is added only after `moved` was reset.
        texts = dict(asked.texts)
        began, phase, moved, may = time.monotonic(), self.phase, asked.moved, set(texts.values())
        try:
            text = await self._text(session, asked.model)
            # The answer of a version that was added during the request is also correct.
            if text not in may | set(asked.texts.values()):
                raise AnswerError(f"answered {text!r}, which is none of {sorted(may)}")
            if moved and text != texts[max(texts)] and text in may:
                self.tally.lag = max(self.tally.lag, began - moved)
        except (AnswerError, aiohttp.ClientError, OSError, TimeoutError) as error:
            self.tally.failures.append(f"{phase}: {asked.model}: {error!r}")
        finally:
            self.tally.requests[phase] += 1

    async def _text(self, session: aiohttp.ClientSession, model: str) -> str:
        """Return the text of a whole stream. Raises AnswerError."""
        pieces, finished, done = [], "", False
        async with session.post(self._url, json=_BODY | {"model": model}) as answer:
            if answer.status != 200:
                raise AnswerError(f"{answer.status}: {(await answer.text())[:400]}")
            async for line in answer.content:
                data = line.removeprefix(b"data: ").strip()
                if data == b"[DONE]":
                    done = True
                elif line.startswith(b"data: "):
                    event = json.loads(data)
                    if "error" in event:
                        raise AnswerError(f"in the stream: {event['error']}")
                    for choice in event["choices"]:
                        pieces.append(choice["text"])
                        finished = choice["finish_reason"] or finished
        if not done or finished != "length":
            raise AnswerError(f"cut off after {''.join(pieces)!r}")
        return "".join(pieces)

    def _session(self) -> aiohttp.ClientSession:
        headers = {"Authorization": f"Bearer {self._key}"}
        return aiohttp.ClientSession(headers=headers, timeout=_TIMEOUT, trust_env=False)
