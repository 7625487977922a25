"""Write docs/parameters.md from the schemas that check requests: `python -m tests.parameter_table`."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

from contracts.capabilities.vllm import examined_versions, vllm_capability
from contracts.openai.parameters import IGNORED
from gateway.api import schema as openai_schema
from gateway.api.responses import request as responses
from worker_engine.openai import embeddings
from worker_engine.openai import schema as worker

PATH: Final = Path(__file__).parents[1] / "docs" / "parameters.md"
_VLLM_EMBEDDINGS: Final = frozenset(
    {"add_special_tokens", "normalize", "priority", "request_id", "truncate_prompt_tokens"}
)
"""Parameters of vLLM's embeddings, which its table of capabilities does not have."""
OURS: Final[Mapping[str, tuple[str, ...]]] = {
    "chat": (),
    "completions": ("adapters",),
    "embeddings": (),
    "responses": (),
}
"""Parameters of the gateway's own."""
_HEAD: Final = """# Parameters of requests

Every parameter of OpenAI's API (as of its Python client), those that vLLM adds and Graftwork's own, at
the gateway's endpoints and at the bundled worker behind them. `python -m tests.parameter_table` writes
this page from the schemas that check requests; a test keeps it in step. [api.md](api.md) and
[worker-api.md](worker-api.md) tell bounds and meanings.

- **served**: checked, and followed; `=1` and the like: with that value alone.
- **dropped**: accepted without an effect.
- refused: 400 `unknown_parameter`, which names it.
- other meaning: the worker has a parameter of this name for something else.
- An empty cell: no API has it at this endpoint, and it is refused.

The gateway also drops the parameters that the operator lists as `dropped_parameters` of a base model
([base-models.md](base-models.md#dropped-parameters)).

| parameter | of | chat | completions | embeddings | responses | worker |
|---|---|---|---|---|---|---|
"""


def openai_parameters() -> dict[str, frozenset[str]]:
    """Return the names of OpenAI's parameters by endpoint."""
    types: dict[str, Iterable[Any]] = {
        "chat": (
            chat_create_params.CompletionCreateParamsNonStreaming,
            chat_create_params.CompletionCreateParamsStreaming,
        ),
        "completions": (
            completion_create_params.CompletionCreateParamsNonStreaming,
            completion_create_params.CompletionCreateParamsStreaming,
        ),
        "embeddings": (embedding_create_params.EmbeddingCreateParams,),
        "responses": (
            response_create_params.ResponseCreateParamsNonStreaming,
            response_create_params.ResponseCreateParamsStreaming,
        ),
    }
    return {
        name: frozenset(field for kind in kinds for field in kind.__annotations__)
        for name, kinds in types.items()
    }


def vllm_parameters() -> dict[str, frozenset[str]]:
    """Return the names of parameters that any examined version of vLLM adds to OpenAI's, by endpoint."""
    theirs = openai_parameters()
    known = [found for version in examined_versions() if (found := vllm_capability(version))]
    own = {
        endpoint: frozenset().union(*(each.parameters.get(endpoint, ()) for each in known)) - names
        for endpoint, names in theirs.items()
    }
    return own | {"embeddings": _VLLM_EMBEDDINGS}


GATEWAY: Final[Mapping[str, Collection[str]]] = {
    "chat": openai_schema.PARAMETERS[openai_schema.CHAT],
    "completions": openai_schema.PARAMETERS[openai_schema.COMPLETIONS],
    "embeddings": openai_schema.PARAMETERS[openai_schema.EMBEDDINGS],
    "responses": responses.CHECKS.keys() - responses.WITHOUT_EFFECT.keys(),
}
WORKER: Final = {**worker.CHAT, **worker.COMPLETION, **embeddings.PARAMETERS}


def render() -> str:
    """Return the page."""
    theirs, vllm = openai_parameters(), vllm_parameters()
    everywhere = {"model", *IGNORED}
    known = {name: theirs[name] | {*everywhere, *vllm[name], *GATEWAY[name]} for name in GATEWAY}
    rows = []
    for parameter in sorted(frozenset().union(*known.values())):
        sources = [
            source
            for source, names in (("OpenAI", theirs), ("vLLM", vllm), ("Graftwork", OURS))
            if any(parameter in names[endpoint] for endpoint in names)
        ]
        cells = [
            _at_gateway(endpoint, parameter) if parameter in known[endpoint] else "" for endpoint in GATEWAY
        ]
        rows.append(
            f"| `{parameter}` | {', '.join(sources)} | {' | '.join(cells)} | {_at_worker(parameter)} |"
        )
    return _HEAD + "\n".join(rows) + "\n"


def _at_gateway(endpoint: str, parameter: str) -> str:
    if parameter == "best_of" and parameter in GATEWAY[endpoint]:
        return "=1"
    if parameter == "model" or parameter in GATEWAY[endpoint]:
        return "served"
    dropped = parameter in IGNORED
    if endpoint == "responses":
        dropped = dropped or parameter in responses.WITHOUT_EFFECT
    return "dropped" if dropped else "refused"


def _at_worker(parameter: str) -> str:
    if any(parameter in names for names in OURS.values()):
        return "other meaning"
    if parameter in worker.NEUTRAL:
        return "=" + json.dumps(worker.NEUTRAL[parameter])
    if parameter in IGNORED:
        return "dropped"
    return "served" if parameter in WORKER else "refused"


if __name__ == "__main__":
    PATH.write_text(render(), encoding="utf-8")
