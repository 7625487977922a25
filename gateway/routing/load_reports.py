"""What copies say of their load, by kind: the worker's own /load, and what vLLM tells Prometheus."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import orjson

from gateway.routing.fleet import DIGEST

_SAMPLE: Final = re.compile(
    rb"^vllm:(num_requests_running|num_requests_waiting|lora_requests_info)(\{[^\n]*\})? ([^ \n]+)", re.M
)
_ENGINE: Final = re.compile(rb'[{,]engine="([^"\n]*)"')
_ADAPTERS: Final = re.compile(rb'(?:running|waiting)_lora_adapters="([^"\n]*)"')
_ENGINE_NAME: Final = re.compile(rb"\.([0-9a-f]{%d})\Z" % DIGEST)
_MOST: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class Load:
    """Requests at a copy, the digests of adapters that it holds, and whether it takes no more."""

    pending: int
    adapters: frozenset[str]
    draining: bool = False


def of_worker(body: bytes) -> Load:
    """Raises ValueError, KeyError or TypeError."""
    value = orjson.loads(body)
    adapters = frozenset(digest[:DIGEST] for digest in value["adapters"])
    return Load(int(value["pending"]), adapters, value["status"] != "ok")


def of_vllm(body: bytes) -> Load:
    """Sums over a server's engines. vLLM names only adapters that have requests: of those that it holds idle
    nothing is known. Raises ValueError when the text is not vLLM's."""
    pending, counted = 0.0, False
    newest: dict[bytes, tuple[float, bytes]] = {}
    for name, labels, text in _SAMPLE.findall(body):
        value = float(text)
        if name == b"lora_requests_info":
            # A series for each set of adapters that there ever was; its value is the time when it was so.
            engine = match[1] if (match := _ENGINE.search(labels)) else b""
            newest[engine] = max(newest.get(engine, (0.0, b"")), (value, labels))
        else:
            pending, counted = pending + value, True
    if not counted or not 0 <= pending < _MOST:
        raise ValueError("these are not vLLM's metrics")
    names = [
        name
        for _, labels in newest.values()
        for part in _ADAPTERS.findall(labels)
        for name in part.split(b",")
    ]
    digests = (match[1].decode() for name in names if (match := _ENGINE_NAME.search(name)))
    return Load(int(pending), frozenset(digests))
