"""A backend with canned answers, as its own process: `python -m benchmarks.canned_upstream --port N`.

It follows the worker's HTTP API (chat and completions, continuous usage) without a model behind it. The
last message's text, when it is JSON, steers it:

    {"tokens": 64, "delay": 0, "fail": null, "code": "engine_dead", "usage": true, "prompt_tokens": 11}

`tokens` are those of all `n` choices, which come in turn.

`delay` is in seconds between tokens, `before` in seconds after the headers of a stream. `fail` is `event` (an
error event half-way), `cut` (the connection breaks half-way), or an HTTP status; `code` is the event's.
`usage` may be an object: told as it is, and only at the end; with `"finish": true` it comes with the last
token. With `"whole": true` no stream is begun whatever is asked for, and `answer` is then the body sent.

`GET /log` gives what became of each request, `GET /busy` how many answers were under way at once at most, and
for how many seconds in sum, since it was asked last.

With `--ledger FILE` tokens are written there by request id before they are sent: so what a killed process had
generated is known.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass(slots=True)
class _Busy:
    now: int = 0
    most: int = 0
    seconds: float = 0.0
    counted: float = field(default_factory=time.monotonic)

    def count(self) -> None:
        """Adds what was under way since this was last called."""
        moment = time.monotonic()
        self.seconds += self.now * (moment - self.counted)
        self.counted = moment

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        self.count()
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            yield
        finally:
            self.count()
            self.now -= 1


_LOG: web.AppKey[list[dict[str, Any]]] = web.AppKey("log")
_BUSY: web.AppKey[_Busy] = web.AppKey("busy")
_LEDGER: web.AppKey[int] = web.AppKey("ledger")
"""Descriptor of the ledger."""


def _usage(plan: dict[str, Any], completion: int) -> dict[str, Any]:
    prompt = plan["prompt_tokens"]
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": prompt // 2},
    }


def _plan(body: dict[str, Any]) -> dict[str, Any]:
    plan: dict[str, Any] = {
        "tokens": 64,
        "delay": 0.0,
        "fail": None,
        "code": "engine_dead",
        "usage": True,
        "prompt_tokens": 11,
        "finish": False,
        "whole": False,
        "answer": None,
        "before": 0.0,
    }
    text = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
    with contextlib.suppress(ValueError, TypeError):
        plan.update(json.loads(text))
    return plan


def _event(body: dict[str, Any], plan: dict[str, Any], index: int) -> bytes:
    """Event `index`; the one after the last token has no choices."""
    tokens, n = plan["tokens"], body.get("n", 1)
    choices: list[dict[str, Any]] = []
    if index < tokens:
        finish = "length" if index >= tokens - n else None
        piece = {"delta": {"content": f"tok{index} "}} if "messages" in body else {"text": f"tok{index} "}
        choices = [{"index": index % n, **piece, "finish_reason": finish}]
    event: dict[str, Any] = {
        "id": "canned",
        "object": "chat.completion.chunk" if "messages" in body else "text_completion",
        "created": 1,
        "model": body["model"],
        "choices": choices,
    }
    if isinstance(plan["usage"], dict):
        if index == tokens - plan["finish"]:
            event["usage"] = plan["usage"]
    elif plan["usage"]:
        event["usage"] = _usage(plan, min(index + 1, tokens))
    return b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"


def _book(request: web.Request, tokens: int) -> None:
    if _LEDGER in request.app:
        os.write(request.app[_LEDGER], request.headers.get("x-request-id", "").encode() + b" %d\n" % tokens)


async def _stream(request: web.Request, body: dict[str, Any], plan: dict[str, Any]) -> web.StreamResponse:
    names = {"id": request.headers.get("x-request-id"), "traceparent": request.headers.get("traceparent")}
    key = request.headers.get("authorization")
    entry: dict[str, Any] = {**names, "key": key, "body": body, "sent": 0, "closed": None}
    request.app[_LOG].append(entry)
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    tokens, half = plan["tokens"], plan["tokens"] // 2
    try:
        await asyncio.sleep(plan["before"])
        if not plan["delay"] and plan["fail"] is None:
            _book(request, tokens)
            events = b"".join(_event(body, plan, index) for index in range(tokens + 1 - plan["finish"]))
            await response.write(events + b"data: [DONE]\n\n")
            entry["sent"] = tokens
            return response
        for index in range(tokens):
            if plan["fail"] is not None and index == half:
                if plan["fail"] == "event":
                    message = f"the model in /srv/models fell over at {body}"
                    error = {"message": message, "type": "server_error", "code": plan["code"]}
                    await response.write(b"data: " + json.dumps({"error": error}).encode() + b"\n\n")
                elif request.transport is not None:
                    request.transport.close()
                return response
            _book(request, 1)
            await response.write(_event(body, plan, index))
            entry["sent"] = index + 1
            await asyncio.sleep(plan["delay"])
        last = b"" if plan["finish"] else _event(body, plan, tokens)
        await response.write(last + b"data: [DONE]\n\n")
    except (asyncio.CancelledError, ConnectionError):
        entry["closed"] = time.time()
        raise
    return response


async def _complete(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    plan = _plan(body)
    if isinstance(plan["fail"], int):
        error = {
            "message": "canned failure",
            "type": "invalid_request_error",
            "code": "canned",
            "param": None,
        }
        return web.json_response({"error": error}, status=plan["fail"])
    if body.get("stream") and not plan["whole"]:
        with request.app[_BUSY].one():
            return await _stream(request, body, plan)
    tokens = plan["tokens"]
    with request.app[_BUSY].one():
        await asyncio.sleep(plan["delay"] * tokens)
    _book(request, tokens)
    text = " ".join(f"tok{index}" for index in range(tokens))
    chat = "messages" in body
    piece = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    answer: dict[str, Any] = {
        "id": "canned",
        "object": "chat.completion" if chat else "text_completion",
        "created": 1,
        "model": body["model"],
        "choices": [{"index": 0, **piece, "finish_reason": "stop"}],
    }
    if plan["usage"]:
        answer["usage"] = plan["usage"] if isinstance(plan["usage"], dict) else _usage(plan, tokens)
    answer = plan["answer"] or answer
    headers = {"id": request.headers.get("x-request-id"), "key": request.headers.get("authorization")}
    request.app[_LOG].append({**headers, "body": body, "sent": tokens})
    return web.json_response(answer)


async def _log(request: web.Request) -> web.Response:
    return web.json_response(request.app[_LOG])


async def _busy(request: web.Request) -> web.Response:
    busy = request.app[_BUSY]
    busy.count()
    said = {"most": busy.most, "seconds": busy.seconds}
    busy.most, busy.seconds = busy.now, 0.0
    return web.json_response(said)


def create_app(ledger: str = "") -> web.Application:
    app = web.Application(handler_args={"access_log": None})
    app[_LOG], app[_BUSY] = [], _Busy()
    if ledger:
        app[_LEDGER] = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    app.router.add_post("/v1/chat/completions", _complete)
    app.router.add_post("/v1/completions", _complete)
    app.router.add_get("/log", _log)
    app.router.add_get("/busy", _busy)
    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--certificate", help="PEM file of a certificate and its key: serves TLS")
    parser.add_argument("--ledger", default="")
    arguments = parser.parse_args()
    tls = None
    if arguments.certificate:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(arguments.certificate)
    web.run_app(
        create_app(arguments.ledger),
        host="127.0.0.1",
        port=arguments.port,
        print=None,
        handler_cancellation=True,
        ssl_context=tls,
    )


if __name__ == "__main__":
    main()
