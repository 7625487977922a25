"""text-generation-inference's container contract: sagemaker-entrypoint.sh and the launcher's checks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sagemaker_local.containers.contract import (
    Container,
    ContractError,
    WorkerSettings,
    adapter_folder,
    weights_folder,
)

_DTYPES: Final = ("float16", "bfloat16")
_QUANTIZE: Final = (
    "awq",
    "compressed-tensors",
    "eetq",
    "exl2",
    "gptq",
    "marlin",
    "bitsandbytes",
    "bitsandbytes-nf4",
    "bitsandbytes-fp4",
    "fp8",
)
_ADAPTER: Final = re.compile(r"([^=@]+)(?:=([^@]+))?(?:@(.+))?")
_REPO_ID: Final = re.compile(r"[\w.-]+(/[\w.-]+)?")


def settings(container: Container) -> WorkerSettings:
    """Check the container as TGI does at its start, and return the worker's settings.

    Raises:
        ContractError: TGI would not start.
    """
    env = container.environment
    model = env.get("HF_MODEL_ID", "")
    if not model:
        raise ContractError("HF_MODEL_ID must be set")
    container.integer("SM_NUM_GPUS")
    container.integer("MAX_CONCURRENT_REQUESTS")
    total, prompt = container.integer("MAX_TOTAL_TOKENS"), container.integer("MAX_INPUT_TOKENS")
    prefill = container.integer("MAX_BATCH_PREFILL_TOKENS")
    if prompt is not None and total is not None and prompt >= total:
        raise ContractError(f"`max_input_tokens`({prompt}) must be < `max_total_tokens`({total})")
    if prompt is not None and prefill is not None and prefill < prompt:
        raise ContractError(
            f"`max_batch_prefill_tokens` must be >= `max_input_tokens`. Given: {prefill} and {prompt}"
        )
    container.choice("QUANTIZE", _QUANTIZE)
    fraction = env.get("CUDA_MEMORY_FRACTION", "1.0")
    if re.fullmatch(r"0?\.\d+|[01](\.\d+)?", fraction) is None:
        raise ContractError(f"CUDA_MEMORY_FRACTION must be a number from 0 to 1, got {fraction!r}")
    flags = dict(_flags(container, total))
    return WorkerSettings(
        _weights(container, model),
        tuple(word for pair in flags.items() for word in pair),
        _adapters(container),
    )


def _flags(container: Container, total: int | None) -> Iterator[tuple[str, str]]:
    if total is not None:
        yield "--max-model-len", str(total)
    if (size := container.integer("MAX_BATCH_SIZE")) is not None:
        yield "--max-num-seqs", str(size)
    if container.choice("DTYPE", _DTYPES) == "bfloat16":
        yield "--dtype", "bfloat16"
    if (tokens := container.integer("SPECULATE")) is not None:
        yield "--speculation", "ngram"
        yield "--speculation-tokens", str(tokens)


def _weights(container: Container, model: str) -> Path:
    if model.startswith("/"):
        return weights_folder(container, model, "HF_MODEL_ID")
    if _REPO_ID.fullmatch(model) is None:
        raise ContractError(
            f"Repo id must be in the form 'repo_name' or 'namespace/repo_name': {model!r}. TGI reads no S3: "
            "give the prefix as ModelDataSource, and HF_MODEL_ID=/opt/ml/model"
        )
    raise ContractError(
        f"HF_MODEL_ID {model} is on the hub, from which the local SageMaker downloads nothing"
    )


def _adapters(container: Container) -> dict[str, Path]:
    found = {}
    for item in filter(None, container.environment.get("LORA_ADAPTERS", "").split(",")):
        match = _ADAPTER.fullmatch(item.strip())
        if match is None or item.count("=") > 1 or item.count("@") > 1:
            raise ContractError(f"Invalid LoRA adapter format: {item}")
        if match[2] is None:
            raise ContractError(
                f"LORA_ADAPTERS {item} is on the hub, from which the local SageMaker downloads nothing"
            )
        found[match[1]] = adapter_folder(container, match[2], match[1])
    return found
