"""Which copies have the endpoints that not every backend serves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from contracts.base_routes import CopyRoute
from contracts.capabilities.vllm import vllm_capability
from gateway.errors import EndpointNotServed
from gateway.routing.fleet import Fleet
from gateway.routing.names import Resolution

_SCORERS: Final = frozenset({"openai_http"})
"""Kinds of copies that may serve scores, reranks and classifications."""
_ENDPOINTS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "/v1/score": ("score", ("/score",)),
    "/v1/rerank": ("rerank", ("/rerank", "/v2/rerank")),
    "/v1/classify": ("classify", ("/classify",)),
}
"""Endpoints of scores: the name in the capability table, and further paths in vLLM's OpenAPI documents."""
_VLLM: Final = "vLLM "
_WHY: Final = {
    "worker": "the bundled worker serves chats, completions and embeddings",
    "sagemaker": "copies on SageMaker serve chats and completions",
}


def serving(resolution: Resolution, path: str) -> Resolution:
    """Return the resolution with those copies alone that may serve `path`, an endpoint of scores.

    Raises:
        EndpointNotServed: the base model has copies, and none of them does.
    """
    copies = resolution.route.copies
    able = tuple(copy for copy in copies if copy.kind in _SCORERS)
    if copies and not able:
        reasons = "; ".join(dict.fromkeys(_WHY.get(copy.kind, copy.kind) for copy in copies))
        raise not_served(resolution.base, path, reasons)
    return replace(resolution, route=replace(resolution.route, copies=able))


def lacking(copies: Sequence[CopyRoute], path: str, fleet: Fleet) -> frozenset[str]:
    """Return the ids of copies that lack `path`, an endpoint of scores.

    The version of vLLM says so, or the server's OpenAPI document, or its answer to an earlier request.
    """
    name, further = _ENDPOINTS[path]
    return frozenset(
        copy.id for copy in copies if _too_old(copy, name) or fleet.copy(copy.id).lacks(path, *further)
    )


def _too_old(copy: CopyRoute, endpoint: str) -> bool:
    if not copy.engine.startswith(_VLLM):
        return False
    capability = vllm_capability(copy.engine.removeprefix(_VLLM))
    return capability is not None and endpoint not in capability.endpoints


def model_lacks(base: str, path: str, copies: Sequence[str]) -> EndpointNotServed:
    """Return the error of copies that could serve `path` by their kind, and lack it."""
    run = "copy {} runs" if len(copies) == 1 else "copies {} run"
    return not_served(base, path, f"{run.format(', '.join(copies))} a model that has no such endpoint")


def not_served(base: str, path: str, reason: str) -> EndpointNotServed:
    """Return the error that says why no copy of `base` serves `path`, and what would."""
    return EndpointNotServed(
        f"No copy of {base!r} serves {path}: {reason}. Call a base model that runs on vLLM as a reranker or "
        "classifier (vllm serve --runner pooling), or ask your operator to deploy one.",
        param="model",
    )
