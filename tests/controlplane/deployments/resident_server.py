"""A server that speaks `worker_engine.residency` and vLLM's adapter routes, and refuses what a test says: no
worker does that on demand."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def _set_event() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


@dataclass
class ResidentServer:
    """`held`: by digest, whether it is pinned. `refuses`: by method and the path's beginning, the status.
    `names`: as vLLM's routes know them. `gone`: whether an eviction is answered as a worker does. `speaks`:
    no answer is sent before it is set."""

    url: str = ""
    held: dict[str, bool] = field(default_factory=dict)
    refuses: dict[tuple[str, str], int] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    gone: bool = True
    speaks: threading.Event = field(default_factory=_set_event)

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        self.speaks.wait(60)
        for (verb, beginning), status in self.refuses.items():
            if verb == method and path.startswith(beginning):
                return status, {"error": {"message": "as the test says"}}
        if path.startswith("/v1/"):
            return self._by_name(path, json.loads(body or b"{}"))
        sha256 = path.split("/")[2] if path.count("/") > 1 else ""
        if method == "GET":
            return 200, {"bytes": 1, "max_bytes": 9, "pinned_bytes": 1, "adapters": self._resident_adapters()}
        if method == "DELETE":
            self.held.pop(sha256, None)
            return 200, {"gone": True} if self.gone else {}
        if sha256:
            self.held[sha256] = False
        else:
            self.held[json.loads(body)["adapter"]["sha256"]] = True
        return 200, {}

    def _by_name(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if path == "/v1/load_lora_adapter":
            self.names.add(body["lora_name"])
        elif path == "/v1/unload_lora_adapter":
            self.names.discard(body["lora_name"])
        return 200, {"data": [{"id": name} for name in sorted(self.names)]}

    def _resident_adapters(self) -> list[dict[str, Any]]:
        return [
            {
                "sha256": sha256,
                "bytes": 1,
                "pinned": ["placement"] if pinned else [],
                "tier": "host",
                "requests": 0,
                "idle_seconds": 1.0,
            }
            for sha256, pinned in self.held.items()
        ]


@contextmanager
def resident_server() -> Iterator[ResidentServer]:
    """Run a server with no adapter in memory."""
    state = ResidentServer()

    class Handler(BaseHTTPRequestHandler):
        def _do(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            status, told = state.answer(self.command, self.path, body)
            content = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = _do

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        state.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()
