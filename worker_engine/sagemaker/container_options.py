"""Settings of LMI's container (OPTION_*) that the worker serves when it runs as a container."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PREFIX: Final = "OPTION_"
DTYPES: Final[Mapping[str, str]] = {
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "fp32": "float32",
    "float32": "float32",
}
"""Values of OPTION_DTYPE besides "auto" and the worker's `--dtype` for them."""
_ANY: Final = (
    "OPTION_MODEL_ID",
    "OPTION_SERVED_MODEL_NAME",
    "OPTION_MAX_ROLLING_BATCH_SIZE",
    "OPTION_MAX_MODEL_LEN",
    "OPTION_MAX_LORAS",
    "OPTION_SPECULATIVE_CONFIG",
)
_SOME: Final[Mapping[str, tuple[str, ...]]] = {
    "OPTION_DTYPE": ("auto", *DTYPES),
    "OPTION_ENABLE_LORA": ("true",),
    "OPTION_TENSOR_PARALLEL_DEGREE": ("1",),
    "OPTION_QUANTIZE": ("none",),
    "OPTION_ROLLING_BATCH": ("auto", "vllm"),
    "OPTION_TRUST_REMOTE_CODE": ("false",),
}
_REMEDIES: Final[Mapping[str, str]] = {
    "OPTION_DTYPE": "set auto, bf16 or fp32",
    "OPTION_ENABLE_LORA": "unset it: the worker always serves adapters",
    "OPTION_MAX_LORA_RANK": "unset it: the worker serves every rank",
    "OPTION_MAX_CPU_LORAS": "set GRAFTWORK_WORKER_FLAG_ADAPTER_CACHE_GIB",
    "OPTION_GPU_MEMORY_UTILIZATION": "set GRAFTWORK_WORKER_FLAG_MEMORY_GIB",
    "OPTION_TENSOR_PARALLEL_DEGREE": "set 1: the worker uses one GPU",
    "OPTION_QUANTIZE": "unset it, and give the worker a quantized checkpoint",
}


def is_served(name: str, value: str) -> bool:
    """Return True if the worker serves the setting, or works that way anyway."""
    return name in _ANY or value.lower() in _SOME.get(name, ())


def remedy(name: str) -> str:
    """Return what to do instead of a setting that is not served."""
    return _REMEDIES.get(name, "unset it")
