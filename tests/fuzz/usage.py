"""Usage as backends report it, in streams and whole answers: counts stay in bounds, nothing else fails."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, Final, cast

import orjson

from contracts.prompt_progress import PROMPT_PROGRESS
from contracts.usage_event import UsageEvent
from gateway.answer import Answer
from gateway.api.dialect import ApiDialect
from gateway.api.responses import RESPONSES, ResponsesDialect
from gateway.api.schema import CHAT, COMPLETIONS, EMBEDDINGS, Call, parse
from gateway.api.usage import MAX_REPORTED
from gateway.backends.base import BackendRequest
from gateway.completions import Completions
from gateway.errors import GatewayError
from gateway.http.asgi import Message
from gateway.lifecycle.drain import Drain
from gateway.observability import Observer
from gateway.observability.metrics import Metrics
from gateway.routing import resolve
from gateway.routing.fleet import Fleet
from gateway.usage.metering import Meter
from gateway.usage.wal_records import CLOSED
from tests.fuzz.drawing import changed_json, json_value, spliced
from tests.fuzz.target import Target, demand
from tests.gateway.conftest import request_context, route_table


def _deep(levels: int) -> bytes:
    """A JSON text: from 255 levels on orjson does not write it, from 1,025 on it does not read it."""
    return b"[" * levels + b"]" * levels


_PIECES: Final = (
    b'"usage"',
    b'"usage":',
    b'"usage": null',
    b'"usage":{"prompt_tokens":3}',
    b"data:",
    b"data: [DONE]\n\n",
    b"\n\n",
    b"\r\n\r\n",
    b"{",
    b"}",
    b'"',
    b"\\",
    b"\\u00",
    b"\xff",
    b"\xc3",
    b'"error":1',
    b'data: {"error":{"code":[]}}\n\n',
    b"null",
    b"[",
    PROMPT_PROGRESS + b"[]\n\n",
    PROMPT_PROGRESS + b"{}\n\n",
    b'"choices":[]',
    b"data: 1\n\n",
    b"data: []\n\n",
    b": x\n\n",
    b'data: [{"usage":{}}]\n\n',
    _deep(300),
    _deep(1100),
    b"event: x\n",
    b"1e999",
    b'"model":"base"',
)
_BODIES: Final[dict[str, dict[str, Any]]] = {
    CHAT: {"messages": [{"role": "user", "content": "hello"}]},
    COMPLETIONS: {"prompt": "hello"},
    EMBEDDINGS: {"input": "hello"},
    RESPONSES: {"input": "hello"},
}

Counts = tuple[int, int]
"""Prompt and completion tokens."""


class _Log:
    """A write-ahead log that keeps the events of closed attempts in memory."""

    def __init__(self) -> None:
        self.closed: list[UsageEvent] = []

    def admits(self) -> str:
        return ""

    def append(self, kind: bytes, data: bytes) -> None:
        event = UsageEvent.from_json(data)
        if kind == CLOSED:
            self.closed.append(event)

    def commit(self, *, alone: bool = False) -> asyncio.Future[None]:
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done


class _Backend:
    """A backend whose answer is these pieces; then its connection breaks."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = iter(pieces)

    async def stream(self, request: BackendRequest) -> _Backend:
        return self

    async def read(self) -> bytes:
        return next(self._pieces, b"")

    def close(self) -> None:
        pass


class _Connected:
    disconnected = False


class UsageCases:
    """Relays random answers as the gateway does, with its own objects but for the log and the backend."""

    def __init__(self, folder: Path) -> None:
        self._log = _Log()
        observer = Observer(Metrics(folder, adapters=10), (), tracing=None, access_log=False)
        self._meter = Meter(cast(Any, self._log), "g", observer)
        parts = {name: cast(Any, None) for name in ("dispatcher", "multi_adapter", "prompts")}
        preparer: Any = SimpleNamespace(measure=lambda answer: None)  # of scores alone, which these are not
        self._completions = Completions(
            preparer, **parts, meter=self._meter, observer=observer, drain=Drain()
        )
        self._fleet = Fleet()
        self._table = route_table("http://127.0.0.1:1")
        self._loop = asyncio.Runner()

    def close(self) -> None:
        self._loop.close()

    def run(self, draw: Random) -> str:
        return self._loop.run(self._relay(draw))

    async def _relay(self, draw: Random) -> str:
        path = draw.choice((CHAT, CHAT, CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES))
        form = _form(draw, path)
        usages, billed = _usages(draw)
        data = _answer(draw, form.call, usages)
        damage = draw.random() < 0.4
        data = spliced(draw, data, _PIECES, 3) if damage else data
        answer = self._answer(form)
        self._log.closed.clear()
        outcome = await self._outcome(answer, _cut(draw, data))
        [event] = self._log.closed
        _check(
            event, outcome, None if damage or (billed == "estimated" and PROMPT_PROGRESS in data) else billed
        )
        return outcome if outcome != "served" else "estimated" if event.estimated else "reported"

    async def _outcome(self, answer: Answer, pieces: Sequence[bytes]) -> str:
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        try:
            answer.context.send = send
            with answer:
                await answer.begin(cast(Any, _Backend(pieces)))
                whole = await self._completions._relay(answer)
        except GatewayError as error:
            demand(error.status in (400, 429, 502, 503, 504), error)
            return "refused"
        body = b"".join(message.get("body", b"") for message in sent)
        # Long embeddings are passed on unread.
        if not answer.context.call.stream and answer.context.call.path != EMBEDDINGS:
            orjson.loads(body)
        return "served" if whole else "broken off"

    def _answer(self, form: ApiDialect) -> Answer:
        resolution = resolve(self._table, "acme", "base", "someone")
        copy = resolution.copies[0]
        context = request_context(form, resolution)
        context.watch = cast(Any, _Connected())
        attempt = self._meter.start(context, resolution, copy, 1)
        sent = BackendRequest(form.call, resolution, copy, "r1", "aa", "acme")
        return Answer(sent, attempt, self._fleet.acquire(copy, None))


def _form(draw: Random, path: str) -> ApiDialect:
    stream = path != EMBEDDINGS and draw.random() < 0.5
    body: dict[str, Any] = {"model": "bot", **_BODIES[path]}
    if stream:
        body["stream"] = True
        if path != RESPONSES and draw.random() < 0.5:
            body["stream_options"] = {"include_usage": True, "continuous_usage_stats": draw.random() < 0.5}
    if path == RESPONSES:
        return ResponsesDialect.read(orjson.dumps(body), "r1")
    return ApiDialect(parse(path, orjson.dumps(body)))


def _usages(draw: Random) -> tuple[list[Any], Counts | str | None]:
    """Return usage objects, and the counts to bill, "estimated", or None where neither is known."""
    number = draw.randrange(1, 4)
    kind = draw.choice(("good", "bad", "any"))
    if kind == "good":
        # Of the events that arrive together the newest is read, so the counts of a good backend never fall.
        prompts, completions = (sorted(draw.randrange(1, 10**6) for _ in range(number)) for _ in range(2))
        pairs = list(zip(prompts, completions, strict=True))
        return [_spelled(draw, *pair) for pair in pairs], pairs[-1]
    if kind == "bad":
        return [_bad(draw) for _ in range(number)], "estimated"
    usual = _spelled(draw, 5, 7)
    return [draw.choice((json_value(draw), changed_json(draw, usual, 0.3))) for _ in range(number)], None


def _spelled(draw: Random, prompt: int, completion: int) -> dict[str, Any]:
    """Counts as one of the known servers spells them."""
    names = draw.choice((("prompt_tokens", "completion_tokens"), ("input_tokens", "output_tokens")))
    spell = draw.choice((int, float, str))
    value: dict[str, Any] = {names[0]: spell(prompt) if spell is not float else float(prompt)}
    value[names[1]] = draw.choice((int, str))(completion)
    if draw.random() < 0.5:
        value["total_tokens"] = prompt + completion
    if draw.random() < 0.5:
        cached = draw.choice((0, 1, prompt, prompt + 5))
        value[names[0] + "_details"] = draw.choice((None, {"cached_tokens": cached}, {}))
    if draw.random() < 0.3:
        value["completion_tokens_details"] = json_value(draw, 1)
    return value


def _bad(draw: Random) -> Any:
    wrong: Any = draw.choice(
        (-1, MAX_REPORTED + 1, 2**63, 1e300, 0.5, "x", "-1", "1" * 40, [], {}, True, "٣")
    )
    return draw.choice(
        (
            None,
            {},
            [],
            "usage",
            7,
            {"prompt_tokens": 3},
            {"completion_tokens": 3},
            {"prompt_tokens": wrong, "completion_tokens": 3},
            {"prompt_tokens": 3, "completion_tokens": wrong},
            {"prompt_tokens": 0, "completion_tokens": 3},
            {"prompt_tokens": 9, "total_tokens": 3},
        )
    )


def _answer(draw: Random, call: Call, usages: Sequence[Any]) -> bytes:
    if not call.streams or draw.random() < 0.1:
        return _dumped(draw, _whole(draw, call, usages[-1]))
    end = draw.choice((b"\n\n", b"\n\n", b"\r\n\r\n"))
    events = [b"data: " + _dumped(draw, _chunk(draw, call, usage)) + end for usage in usages]
    if draw.random() < 0.1:
        events.insert(
            0, PROMPT_PROGRESS + orjson.dumps({"prompt_tokens": 1, "completion_tokens": 0}) + b"\n\n"
        )
    if draw.random() < 0.1:
        events.insert(draw.randrange(len(events) + 1), b": alive" + end)
    if draw.random() < 0.1:
        error = {"error": changed_json(draw, {"message": "x", "type": "server_error", "code": 500}, 0.3)}
        events.insert(draw.randrange(len(events) + 1), b"data: " + orjson.dumps(error) + end)
    return b"".join(events) + (b"data: [DONE]" + end if draw.random() < 0.95 else b"")


def _chunk(draw: Random, call: Call, usage: Any) -> Any:
    choice: dict[str, Any] = {"index": 0, "finish_reason": draw.choice((None, None, "stop", "length"))}
    if call.path == COMPLETIONS:
        choice["text"] = draw.choice(("", "word ", "é", '"usage": {"prompt_tokens": 1}'))
    else:
        choice["delta"] = _delta(draw)
    if draw.random() < 0.2:
        choice["logprobs"] = {"content": [{"token": "a", "logprob": -1.0, "bytes": [97], "top_logprobs": []}]}
    if draw.random() < 0.03:
        choice["logprobs"] = {"content": [orjson.loads(_deep(draw.randrange(230, 248)))]}
    value = {
        "id": "x",
        "object": "chat.completion.chunk",
        "model": "base",
        "choices": [choice],
        "usage": usage,
    }
    if draw.random() < 0.2:
        value["choices"] = []
    if draw.random() < 0.2:
        value = {name: value[name] for name in draw.sample(list(value), len(value))}
    # The usage stays as it was drawn, so that it is known what to bill.
    return _changed(draw, value) if draw.random() < 0.2 else value


def _changed(draw: Random, value: dict[str, Any]) -> dict[str, Any]:
    return {name: item if name == "usage" else changed_json(draw, item, 0.1) for name, item in value.items()}


def _delta(draw: Random) -> dict[str, Any]:
    call = {
        "index": draw.choice((0, 0, 1)),
        "id": "c1",
        "type": "function",
        "function": {"name": "f", "arguments": "{}"},
    }
    return draw.choice(
        (
            {"role": "assistant", "content": ""},
            {"content": "word "},
            {"content": 'é\n"usage":'},
            {},
            {"tool_calls": [call]},
            {"reasoning_content": "hm"},
            {"content": None},
        )
    )


def _whole(draw: Random, call: Call, usage: Any) -> Any:
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop", "text": "word"}
    if call.path == CHAT:
        choice["message"] = {"role": "assistant"} | _delta(draw)
    value: dict[str, Any] = {"object": "list", "model": "base", "choices": [choice], "usage": usage}
    if call.path == EMBEDDINGS:
        value = {"data": [{"embedding": [0.25] * draw.choice((1, 30_000))}], "usage": usage}
    return _changed(draw, value) if draw.random() < 0.3 else value


def _dumped(draw: Random, value: Any) -> bytes:
    data = orjson.dumps(value)
    return data.replace(b'"usage":', draw.choice((b'"usage": ', b'"usage" :', b'"usage":')))


def _cut(draw: Random, data: bytes) -> list[bytes]:
    """Pieces as a network delivers them."""
    cuts = sorted(draw.randrange(len(data) + 1) for _ in range(draw.choice((0, 0, 1, 5))))
    pieces = [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    return [piece for piece in pieces if piece]


def _check(event: UsageEvent, outcome: str, billed: Counts | str | None) -> None:
    counts = (event.prompt_tokens, event.cached_tokens, event.completion_tokens)
    assert all(type(count) is int and 0 <= count <= MAX_REPORTED for count in counts), counts
    assert event.cached_tokens <= event.prompt_tokens
    assert event.error_code != "internal_error"
    if outcome != "served" or billed is None:
        return
    assert event.status == "ok"
    if billed == "estimated":
        assert event.estimated
        assert event.prompt_tokens > 0
    else:
        assert (event.prompt_tokens, event.completion_tokens) == billed, (counts, billed)
        assert not event.estimated


@contextmanager
def open_target(folder: Path) -> Iterator[Target]:
    """Opens the part of a gateway that relays answers and records their usage."""
    cases = UsageCases(folder)
    try:
        yield Target(cases.run)
    finally:
        cases.close()
