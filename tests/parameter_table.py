"""Write docs/parameters.md from the schemas that check requests: `python -m tests.parameter_table`."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

from contracts.openai.parameters import IGNORED
from gateway.api import schema as openai_schema
from gateway.api.responses import request as responses
from worker_engine.openai import embeddings
from worker_engine.openai import schema as worker

PATH: Final = Path(__file__).parents[1] / "docs" / "parameters.md"
_VLLM_SAMPLING: Final = (
    "allowed_token_ids",
    "bad_words",
    "ignore_eos",
    "include_stop_str_in_output",
    "length_penalty",
    "min_p",
    "min_tokens",
    "prompt_logprobs",
    "repetition_penalty",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "stop_token_ids",
    "top_k",
    "truncate_prompt_tokens",
    "use_beam_search",
)
_VLLM_REQUEST: Final = (
    "add_special_tokens",
    "cache_salt",
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "kv_transfer_params",
    "logits_processors",
    "priority",
    "request_id",
    "response_format",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "structured_outputs",
    "vllm_xargs",
)
VLLM: Final[Mapping[str, tuple[str, ...]]] = {
    "chat": (
        *_VLLM_SAMPLING,
        *_VLLM_REQUEST,
        "add_generation_prompt",
        "chat_template",
        "chat_template_kwargs",
        "continue_final_message",
        "documents",
        "echo",
        "include_reasoning",
        "mm_processor_kwargs",
        "thinking_token_budget",
    ),
    "completions": (*_VLLM_SAMPLING, *_VLLM_REQUEST, "prompt_embeds"),
    "embeddings": ("add_special_tokens", "normalize", "priority", "request_id", "truncate_prompt_tokens"),
    "responses": (),
}
"""Parameters that vLLM 0.11 adds to OpenAI's, and the later `thinking_token_budget`."""
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


GATEWAY: Final[Mapping[str, Collection[str]]] = {
    "chat": openai_schema.PARAMETERS[openai_schema.CHAT],
    "completions": openai_schema.PARAMETERS[openai_schema.COMPLETIONS],
    "embeddings": openai_schema.PARAMETERS[openai_schema.EMBEDDINGS],
    "responses": responses.CHECKS.keys() - responses.WITHOUT_EFFECT.keys(),
}
WORKER: Final = {**worker.CHAT, **worker.COMPLETION, **embeddings.PARAMETERS}


def render() -> str:
    """Return the page."""
    theirs = openai_parameters()
    everywhere = {"model", *IGNORED}
    known = {name: theirs[name] | {*everywhere, *VLLM[name], *GATEWAY[name]} for name in GATEWAY}
    rows = []
    for parameter in sorted(frozenset().union(*known.values())):
        sources = [
            source
            for source, names in (("OpenAI", theirs), ("vLLM", VLLM), ("Graftwork", OURS))
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
    if parameter == "best_of":
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
