"""vLLM's pooling endpoints with a byte a token: `/v1/score`, `/v1/rerank`, `/classify` and LoRA loading.

Forms, errors and counts are those of vLLM's `entrypoints/pooling`. The server runs in a thread of the test.
"""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web

from tests.conftest import free_port
from tests.gateway.routing.standin import ServerThread

SEPARATORS: Final = 3
"""Special tokens of a pair."""
MAX_MODEL_LEN: Final = 64


class PoolingServer:
    """One server.

    Attributes:
        calls: (path, body) of each request that it answered.
        behaviour: `generates` makes it a model for generation, which lacks the routes; `older` makes it
            refuse them as vLLM 0.9 does; `broken` leaves out the list; `silent` leaves out the usage.
    """

    def __init__(self, thread: ServerThread, *, loaded: tuple[str, ...] = ()) -> None:
        self._thread, self._port = thread, free_port()
        self._models = {"base", *loaded}
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.behaviour = ""
        thread.run(self._start())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def close(self) -> None:
        self._thread.run(self._runner.cleanup())

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_post("/v1/load_lora_adapter", self._load)
        for path in ("/v1/score", "/score", "/v1/rerank", "/rerank", "/v2/rerank", "/classify"):
            app.router.add_post(path, self._serve)
        self._runner = web.AppRunner(app, shutdown_timeout=0.05)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()

    async def _load(self, request: web.Request) -> web.Response:
        self._models.add((await request.json())["lora_name"])
        return web.Response(text="Success")

    async def _serve(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.calls.append((request.path, body))
        if self.behaviour == "generates":
            return web.json_response({"detail": "Not Found"}, status=404)
        if self.behaviour == "older":
            return _error(400, "The model does not support Score API", "BadRequestError")
        if body["model"] not in self._models:
            return _error(404, f"The model `{body['model']}` does not exist.", "NotFoundError")
        pairs = _pairs(request.path, body)
        if isinstance(pairs, web.Response):
            return pairs
        counts = [sum(map(len, pair)) + SEPARATORS for pair in pairs]
        if (cut := body.get("truncate_prompt_tokens")) is not None:
            counts = [min(count, MAX_MODEL_LEN if cut == -1 else cut) for count in counts]
        if max(counts) > MAX_MODEL_LEN:
            text = f"This model's maximum context length is {MAX_MODEL_LEN} tokens. However, you requested"
            return _error(400, f"{text} {max(counts)} tokens.", "BadRequestError")
        answer = _answer(request, body, pairs)
        if self.behaviour != "silent":
            answer["usage"] = {"prompt_tokens": sum(counts), "total_tokens": sum(counts)}
        if self.behaviour == "broken":
            answer = {"object": "list", "usage": answer["usage"]}
        return web.json_response(answer)


def _error(status: int, message: str, kind: str) -> web.Response:
    error = {"message": message, "type": kind, "param": None, "code": status}
    return web.json_response({"error": error}, status=status)


def _pairs(path: str, body: dict[str, Any]) -> list[tuple[bytes, ...]] | web.Response:
    if path == "/classify":
        given = body["input"] if isinstance(body["input"], list) else [body["input"]]
        return [(text.encode(),) for text in given]
    if path.endswith("rerank"):
        first, second = body["query"], body["documents"]
    else:
        first, second = body["text_1"], body["text_2"]
    sides = [[side] if isinstance(side, str) else side for side in (first, second)]
    if len(sides[0]) not in (1, len(sides[1])):
        return _error(400, "Input lengths must be either 1:1, 1:N or N:N", "BadRequestError")
    queries = sides[0] * len(sides[1]) if len(sides[0]) == 1 else sides[0]
    return [(one.encode(), other.encode()) for one, other in zip(queries, sides[1], strict=True)]


def score(pair: tuple[bytes, ...]) -> float:
    """Return the share of the second text's bytes that the first one has."""
    return sum(byte in pair[0] for byte in pair[-1]) / len(pair[-1])


def _answer(request: web.Request, body: dict[str, Any], pairs: list[tuple[bytes, ...]]) -> dict[str, Any]:
    """Return the body without usage. Like vLLM it names the base model, even where an adapter answered."""
    name = request.headers["x-request-id"]
    if request.path == "/classify":
        data: list[dict[str, Any]] = [
            {"index": index, "label": "long" if len(pair[0]) > 5 else "short", "probs": [0.25, 0.75]}
            | {"num_classes": 2}
            for index, pair in enumerate(pairs)
        ]
        head = {"id": f"classify-{name}", "object": "list", "created": 1, "model": body["model"]}
        return {**head, "data": data}
    if request.path.endswith("rerank"):
        results = [
            {
                "index": index,
                "document": {"text": pair[1].decode(), "multi_modal": None},
                "relevance_score": score(pair),
            }
            for index, pair in enumerate(pairs)
        ]
        results.sort(key=lambda item: item["relevance_score"], reverse=True)  # type: ignore[arg-type, return-value]
        shown = results[: body.get("top_n") or len(results)]
        return {"id": f"score-{name}", "model": "base", "results": shown}
    data = [{"index": index, "object": "score", "score": score(pair)} for index, pair in enumerate(pairs)]
    return {"id": f"score-{name}", "object": "list", "created": 1, "model": "base", "data": data}
