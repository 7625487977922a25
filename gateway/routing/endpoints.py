"""Which copies have the endpoints that not every backend serves."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gateway.errors import EndpointNotServed
from gateway.routing.names import Resolution

_SCORERS: Final = frozenset({"openai_http"})
"""Kinds of copies that may serve scores, reranks and classifications."""
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


def not_served(base: str, path: str, reason: str) -> EndpointNotServed:
    """Return the error that says why no copy of `base` serves `path`, and what would."""
    return EndpointNotServed(
        f"No copy of {base!r} serves {path}: {reason}. Call a base model that runs on vLLM as a reranker or "
        "classifier (vllm serve --runner pooling), or ask your operator to deploy one.",
        param="model",
    )
