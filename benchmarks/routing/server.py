"""One simulated vLLM server: its API over a simulated engine, without a transport."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from benchmarks.routing.engine import Job, SimulatedEngine

VERSION = "0.32.0"


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer, or a request that the engine computes.

    Attributes:
        job: set for a completion with status 200; then `body` is empty.
    """

    status: int
    body: bytes = b""
    job: Job | None = None


@dataclass(eq=False)
class SimulatedServer:
    """The endpoints that a gateway calls, as vLLM 0.32 answers them.

    Attributes:
        served: name of the base model.
    """

    served: str
    engine: SimulatedEngine
    _registered: dict[str, None] = field(default_factory=dict)

    async def post(self, path: str, body: Mapping[str, Any]) -> Answer:
        """Answer a POST. Prompts are texts with a token for each word."""
        if path == "/v1/load_lora_adapter":
            return await self._load(body["lora_name"])
        if path == "/v1/unload_lora_adapter":
            return self._unload(body["lora_name"])
        if path not in ("/v1/completions", "/v1/chat/completions"):
            return _refusal(404, "Not Found")
        model = body["model"]
        if model != self.served and model not in self._registered:
            return _refusal(404, f"The model `{model}` does not exist.")
        prompt = _text(body).count(" ") + 1
        adapter = "" if model == self.served else model
        return Answer(200, job=self.engine.submit(adapter, prompt, body["max_tokens"]))

    def get(self, path: str) -> Answer:
        """Answer a GET of `/metrics`, `/v1/models`, `/version` or `/health`."""
        if path == "/metrics":
            return Answer(200, self._metrics().encode())
        if path == "/v1/models":
            models = [{"id": name, "object": "model", "owned_by": "vllm"} for name in self.models]
            return Answer(200, orjson.dumps({"object": "list", "data": models}))
        if path == "/version":
            return Answer(200, orjson.dumps({"version": VERSION}))
        return Answer(200) if path == "/health" else _refusal(404, "Not Found")

    @property
    def models(self) -> list[str]:
        return [self.served, *self._registered]

    async def _load(self, name: str) -> Answer:
        if name in self._registered:
            return _refusal(400, f"The lora adapter '{name}' has already been loaded.")
        await self.engine.load(name)
        self._registered[name] = None
        return Answer(200, b"Success")

    def _unload(self, name: str) -> Answer:
        if name not in self._registered:
            return _refusal(404, f"The lora adapter '{name}' cannot be found.")
        del self._registered[name]
        self.engine.drop(name)
        return Answer(200, b"Success")

    def _metrics(self) -> str:
        engine, labels = self.engine, f'engine="0",model_name="{self.served}"'
        adapters = (
            f'max_lora="{engine.shape.max_loras}",'
            f'running_lora_adapters="{",".join(engine.batch_adapters)}",'
            f'waiting_lora_adapters="{",".join(sorted(engine.waiting_adapters))}"'
        )
        return (
            f"vllm:num_requests_running{{{labels}}} {engine.running}.0\n"
            f"vllm:num_requests_waiting{{{labels}}} {engine.waiting}.0\n"
            f"vllm:lora_requests_info{{{adapters}}} 1.0\n"
        )


def _text(body: Mapping[str, Any]) -> str:
    if "prompt" in body:
        return str(body["prompt"])
    return " ".join(str(message["content"]) for message in body["messages"])


def _refusal(status: int, message: str) -> Answer:
    error = {"message": message, "type": "NotFoundError", "param": None, "code": status}
    return Answer(status, orjson.dumps({"error": error}))
