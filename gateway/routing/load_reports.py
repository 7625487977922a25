"""Parses copies' load reports, by kind: the worker's /load, and vLLM's metrics and list of models."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import orjson

from contracts.vllm_metrics import VllmMetrics
from gateway.routing.fleet import DIGEST

_ENGINE_NAME: Final = re.compile(rf"\.([0-9a-f]{{{DIGEST}}})\Z")


@dataclass(frozen=True, slots=True)
class Load:
    """A copy's number of requests, the digests of its resident adapters, and whether it drains.

    Attributes:
        names: engine names that vLLM lists as models; None where they were not read.
        busy: names of the adapters that have requests, as vLLM's metrics say.
        slots: adapters that fit into one batch, as they say; None for no limit.
    """

    pending: int
    adapters: frozenset[str]
    draining: bool = False
    names: frozenset[str] | None = None
    busy: frozenset[str] = frozenset()
    slots: int | None = None


def of_worker(body: bytes) -> Load:
    """Parse a worker's report. Raises ValueError, KeyError or TypeError."""
    value = orjson.loads(body)
    adapters = frozenset(digest[:DIGEST] for digest in value["adapters"])
    return Load(int(value["pending"]), adapters, value["status"] != "ok")


def of_vllm(metrics: bytes, models: bytes | None = None) -> Load:
    """Parse vLLM's metrics, and its list of models if it gave one. Raises ValueError for any other text.

    The metrics name only adapters with requests; the list names all that it has loaded.
    """
    read = VllmMetrics.parse(metrics)
    listed = None if models is None else model_names(models)
    names = read.adapters if listed is None else read.adapters | listed
    return Load(read.pending, digests(names), names=listed, busy=read.adapters, slots=read.slots)


def model_names(body: bytes) -> frozenset[str]:
    """Return the engine names in the answer of `/v1/models`. Raises ValueError."""
    try:
        names = [str(item["id"]) for item in orjson.loads(body)["data"]]
    except (KeyError, TypeError) as error:
        raise ValueError("this is no list of models") from error
    return frozenset(name for name in names if _ENGINE_NAME.search(name))


def paths_of(body: bytes) -> frozenset[str]:
    """Return the paths in a server's OpenAPI document. Raises ValueError."""
    try:
        paths = orjson.loads(body)["paths"]
        return frozenset(map(str, paths.keys()))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("this is no OpenAPI document") from error


def digests(names: Iterable[str]) -> frozenset[str]:
    """Return the digests at the ends of engine names."""
    return frozenset(match[1] for name in names if (match := _ENGINE_NAME.search(name)))
