"""Parses copies' load reports, by kind: the worker's /load, and vLLM's Prometheus metrics."""

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
    """A copy's number of requests, the digests of its resident adapters, and whether it drains."""

    pending: int
    adapters: frozenset[str]
    draining: bool = False


def of_worker(body: bytes) -> Load:
    """Parse a worker's report. Raises ValueError, KeyError or TypeError."""
    value = orjson.loads(body)
    adapters = frozenset(digest[:DIGEST] for digest in value["adapters"])
    return Load(int(value["pending"]), adapters, value["status"] != "ok")


def of_vllm(body: bytes) -> Load:
    """Parse vLLM's metrics, summed over a server's engines. Raises ValueError for any other text.

    vLLM names only adapters with requests, so adapters that are resident but idle are unknown.
    """
    pending, counted = 0.0, False
    newest: dict[bytes, tuple[float, bytes]] = {}
    for name, labels, text in _SAMPLE.findall(body):
        value = float(text)
        if name == b"lora_requests_info":
            # One series for each set of adapters so far; its value is the time of that set.
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
