"""vLLM's container contract: SM_VLLM_* variables as the flags of its server, and what the server refuses.

Sources: scripts/docker/vllm/sagemaker_args.py of aws/deep-learning-containers, and vLLM's arg_utils.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sagemaker_local.containers.contract import Container, ContractError, WorkerSettings, weights_folder
from sagemaker_local.copies.command import MODEL_FOLDER

PREFIX: Final = "SM_VLLM_"
_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
_DTYPES: Final = ("auto", "half", "float16", "bfloat16", "float", "float32")
_RESOLVER: Final = "lora_filesystem_resolver"
_SPECULATION: Final = {"ngram": "ngram", "draft_model": "draft"}


@dataclass(frozen=True, slots=True)
class VllmServer:
    """Settings of the server that the worker does not have.

    Attributes:
        served_name: the base model's name in requests and answers.
        max_lora_rank: highest rank that the server loads; 0 if it serves no adapters.
        loads: it has the routes that load adapters at run time.
        resolver: folder from which a request's adapter is loaded; None without one.
        reads_routes: /invocations takes a route from the custom attributes.
    """

    served_name: str
    max_lora_rank: int
    loads: bool
    resolver: Path | None
    reads_routes: bool


def settings(container: Container) -> WorkerSettings:
    """Check the container as vLLM does at its start, and return the worker's settings.

    Raises:
        ContractError: vLLM would not start.
    """
    flags = _flags(container.environment)
    server(container)
    found = dict(_worker_flags(container, flags))
    return WorkerSettings(
        _weights(container, flags), tuple(word for pair in found.items() for word in pair), {}
    )


def server(container: Container) -> VllmServer:
    """Return the server's own settings. Raises ContractError."""
    env, flags = container.environment, _flags(container.environment)
    rank, with_lora = _integer(flags, "max-lora-rank", 16), "enable-lora" in flags
    if rank not in _RANKS:
        raise ContractError(f"max_lora_rank ({rank}) must be one of {_RANKS}.")
    loras, host = _integer(flags, "max-loras", 1), _integer(flags, "max-cpu-loras", 0)
    if host and host < loras:
        raise ContractError(f"max_cpu_loras ({host}) must be >= max_loras ({loras}).")
    loads = env.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "0").strip().lower() in ("1", "true")
    return VllmServer(
        flags.get("served-model-name") or flags.get("model") or MODEL_FOLDER,
        rank if with_lora else 0,
        loads and with_lora,
        _resolver(container) if loads and with_lora else None,
        "server-sagemaker" in container.image,
    )


def _flags(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the flags: `true` is one without a value, `false` leaves one out."""
    found = {}
    for name, value in sorted(environment.items()):
        if name.startswith(PREFIX) and value.strip().lower() != "false":
            flag = name.removeprefix(PREFIX).lower().replace("_", "-")
            found[flag] = "" if value.strip().lower() == "true" else value
    return found


def _integer(flags: Mapping[str, str], name: str, default: int) -> int:
    text = flags.get(name, str(default))
    if not text.isascii() or not text.isdecimal():
        raise ContractError(f"argument --{name}: invalid int value: {text!r}")
    return int(text)


def _worker_flags(container: Container, flags: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if "max-model-len" in flags:
        yield "--max-model-len", str(_integer(flags, "max-model-len", 0))
    yield "--max-num-seqs", str(_integer(flags, "max-num-seqs", 256))
    if "max-loras" in flags:
        yield "--max-adapters-per-batch", str(_integer(flags, "max-loras", 1))
    dtype = flags.get("dtype", "auto")
    if dtype not in _DTYPES:
        raise ContractError(f"argument --dtype: invalid choice: {dtype!r} (choose from {', '.join(_DTYPES)})")
    if dtype in ("bfloat16", "float32"):
        yield "--dtype", dtype
    if "speculative-config" in flags:
        yield from _speculation(container, flags["speculative-config"])


def _speculation(container: Container, text: str) -> Iterator[tuple[str, str]]:
    try:
        config: Any = json.loads(text)
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise ContractError(f"argument --speculative-config: Value {text} cannot be converted to JSON.")
    if (method := config.get("method")) not in _SPECULATION:
        raise ContractError(f"the local SageMaker has no speculation by {method!r}")
    yield "--speculation", _SPECULATION[method]
    yield "--speculation-tokens", str(config.get("num_speculative_tokens", 4))
    if method == "draft_model":
        yield "--draft-model", str(container.local(str(config.get("model", ""))))


def _weights(container: Container, flags: Mapping[str, str]) -> Path:
    """Return the weights: SM_VLLM_MODEL, else files in MODEL_FOLDER, else HF_MODEL_ID."""
    model, name = flags.get("model", ""), f"{PREFIX}MODEL"
    if not model and any(container.local(MODEL_FOLDER).glob("*")):
        model = MODEL_FOLDER
    elif not model:
        model, name = container.environment.get("HF_MODEL_ID", ""), "HF_MODEL_ID"
    if not model:
        raise ContractError(
            f"No model specified. Set {PREFIX}MODEL, HF_MODEL_ID, or mount a model to {MODEL_FOLDER}."
        )
    if model.startswith("/"):
        return weights_folder(container, model, name)
    if model.startswith("s3://"):
        raise ContractError(
            f"Repo id must be in the form 'repo_name' or 'namespace/repo_name': {model!r}. Give the prefix "
            f"as ModelDataSource, and {PREFIX}MODEL={MODEL_FOLDER}"
        )
    raise ContractError(f"{name} {model} is on the hub, from which the local SageMaker downloads nothing")


def _resolver(container: Container) -> Path | None:
    env = container.environment
    plugins = [item.strip() for item in env.get("VLLM_PLUGINS", _RESOLVER).split(",")]
    folder = env.get("VLLM_LORA_RESOLVER_CACHE_DIR", "")
    if _RESOLVER not in plugins or not folder:
        return None
    if not container.local(folder).is_dir():
        raise ContractError(
            "VLLM_LORA_RESOLVER_CACHE_DIR must be set to a valid directory for Filesystem Resolver plugin to "
            f"function, got {folder}"
        )
    return container.local(folder)
