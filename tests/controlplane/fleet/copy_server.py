"""Servers that speak as copies do of their load and their adapters, and fall silent when a test says so."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WORKER = """graftwork_worker_up 1
graftwork_worker_requests_running 3
graftwork_worker_requests_waiting 2
graftwork_worker_kv_pages_used 40
graftwork_worker_kv_pages_cached 10
graftwork_worker_kv_pages_total 100
graftwork_worker_adapter_pages 5
graftwork_worker_adapters_resident{tier="host"} 7
graftwork_worker_adapters_resident{tier="batch"} 2
graftwork_worker_adapter_bytes 2000000
graftwork_worker_tuned_config{file="NVIDIA_H100_lora.json"} 1
graftwork_worker_tenant_requests_running{tenant="acme"} 99
"""
VLLM = """vllm:num_requests_running{model_name="x",engine="0"} 4.0
vllm:num_requests_running{model_name="x",engine="1"} 1.0
vllm:num_requests_waiting{model_name="x",engine="0"} 6.0
vllm:kv_cache_usage_perc{model_name="x",engine="0"} 0.25
"""
VLLM_LORA = """vllm:lora_requests_info{max_lora="4",running_lora_adapters="one",waiting_lora_adapters=""} 1.0
vllm:lora_requests_info{max_lora="4",running_lora_adapters="two,three",waiting_lora_adapters="four"} 2.0
"""


@dataclass
class CopyServer:
    """`held`: tier by digest; `disk`: digests. `status`: of every answer; `hangs`: seconds before it."""

    url: str = ""
    metrics: str = WORKER
    held: dict[str, str] = field(default_factory=dict)
    disk: list[str] = field(default_factory=list)
    models: list[str] = field(default_factory=list)
    status: int = 200
    hangs: float = 0.0
    asked: list[str] = field(default_factory=list)

    def answer(self, path: str) -> bytes:
        self.asked.append(path)
        time.sleep(self.hangs)  # as a copy that does not answer in time
        if path == "/metrics":
            return self.metrics.encode()
        if path == "/v1/models":
            return json.dumps({"data": [{"id": name} for name in self.models]}).encode()
        if path == "/resident/disk":
            return json.dumps({"sha256": self.disk}).encode()
        adapters = [
            {"sha256": sha256, "bytes": 1000, "pinned": [], "tier": tier, "requests": 1, "idle_seconds": 2.0}
            for sha256, tier in self.held.items()
        ]
        told = {"bytes": 1000, "max_bytes": 9000, "pinned_bytes": 0, "adapters": adapters}
        return json.dumps(told).encode()


@contextmanager
def copy_server() -> Iterator[CopyServer]:
    """Run a copy server."""
    state = CopyServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = state.answer(self.path)
            self.send_response(state.status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        state.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()
