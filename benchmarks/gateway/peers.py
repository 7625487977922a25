"""Third-party gateways, measured where their programs are installed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from benchmarks.gateway.targets import KEY, PLAIN, Target
from benchmarks.processes import free_port, start, wait_until

Command = Callable[[str, int, Path, str], list[str]]
"""(program, port, scratch folder, backend's URL) -> the command line."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One program; `note` lists its enabled features."""

    name: str
    variable: str
    default: str
    command: Command
    note: str
    headers: Callable[[str], dict[str, str]] = lambda _: {}
    streams: bool = True

    def program(self) -> str | None:
        """Return its path: from the environment variable, else from the PATH."""
        return os.environ.get(self.variable) or shutil.which(self.default)

    def start(self, stack: contextlib.ExitStack, program: str, folder: Path, upstream: str) -> Target:
        """Start it and wait for an answer. Raises TimeoutError when it does not answer."""
        port = free_port()
        local = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False", "PORT": str(port)}
        process = start(stack, self.command(program, port, folder, upstream), os.environ | local)
        target = Target(f"http://127.0.0.1:{port}", process.pid, self.headers(upstream), self.streams)
        wait_until(lambda: _chats(target), name=self.name, seconds=120)
        return target


def _chats(target: Target) -> bool:
    headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}", **target.headers}
    url = f"{target.url}/v1/chat/completions"
    return httpx.post(url, content=PLAIN, headers=headers, timeout=5, trust_env=False).is_success


def _litellm(program: str, port: int, folder: Path, upstream: str) -> list[str]:
    model = {"model": "openai/base", "api_base": upstream + "/v1", "api_key": "none"}
    config = {
        "model_list": [{"model_name": "base", "litellm_params": model}],
        "general_settings": {"master_key": KEY},
    }
    path = folder / "litellm.yaml"
    path.write_text(json.dumps(config))
    address = ["--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
    return [program, "--config", str(path), *address]


def _portkey(program: str, port: int, _: Path, upstream: str) -> list[str]:
    return ["node", program, f"--port={port}", "--headless"]


def _portkey_headers(upstream: str) -> dict[str, str]:
    return {"x-portkey-provider": "openai", "x-portkey-custom-host": upstream + "/v1"}


def _vllm_router(program: str, port: int, _: Path, upstream: str) -> list[str]:
    address = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())]
    return [program, *address, "--worker-urls", upstream, "--policy", "round_robin", "--log-level", "warning"]


def _smg(program: str, port: int, _: Path, upstream: str) -> list[str]:
    address = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())]
    quiet = ["--log-level", "warn", "--disable-tokenizer-autoload"]
    return [program, "launch", *address, "--worker-urls", upstream, "--policy", "round_robin", *quiet]


PEERS: Final = (
    Peer("litellm", "GRAFTWORK_LITELLM_BIN", "litellm", _litellm, "LiteLLM, 1 worker, key, no database"),
    Peer(
        "portkey",
        "GRAFTWORK_PORTKEY_JS",
        "portkey-start-server.js",
        _portkey,
        "Portkey gateway (Node), no key, no limits, no metering",
        _portkey_headers,
        streams=False,
    ),
    Peer(
        "vllm-router",
        "GRAFTWORK_VLLM_ROUTER_BIN",
        "vllm-router",
        _vllm_router,
        "vllm-router (Rust), no key, no limits, no metering",
    ),
    Peer("smg", "GRAFTWORK_SMG_BIN", "smg", _smg, "smg (Rust), no key, no limits, no metering"),
)
