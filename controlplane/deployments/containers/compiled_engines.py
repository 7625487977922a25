"""Options and variables of LMI's images that serve compiled models: Neuron's and TensorRT-LLM's.

Their names are those of LMI's user guides for the two engines. A compiled model serves only the shapes that
it was compiled for, so an optimization job's variant brings these options along.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from controlplane.deployments.containers.images import Image


class EngineOptions(Protocol):
    """The options that these engines read; see `LmiOptions`."""

    @property
    def tensor_parallel(self) -> int: ...
    @property
    def max_rolling_batch_size(self) -> int: ...
    @property
    def max_model_len(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def quantize(self) -> str: ...
    @property
    def rolling_batch(self) -> str: ...
    @property
    def gpu_memory_utilization(self) -> float: ...
    @property
    def trust_remote_code(self) -> bool: ...


_NEURON: Final[Mapping[str, tuple[Any, ...] | None]] = {
    "enable_lora": (False,),
    "tensor_parallel": None,
    "max_rolling_batch_size": None,
    "max_model_len": None,
    "dtype": ("fp16", "bf16", "fp32"),
    "rolling_batch": None,
    "trust_remote_code": None,
}
_TENSORRT_LLM: Final[Mapping[str, tuple[Any, ...] | None]] = {
    **_NEURON,
    "quantize": ("awq", "fp8"),
    "gpu_memory_utilization": None,
}


def compiled_engine_options(image: Image) -> Mapping[str, tuple[Any, ...] | None] | None:
    """Return the options with an effect and their supported values besides the default; None for all.

    Returns None instead of a table for an image of another engine.
    """
    if image.neuron:
        return _NEURON
    return _TENSORRT_LLM if image.tensorrt_llm else None


def compiled_engine_environment(options: EngineOptions, image: Image, accelerators: int) -> dict[str, str]:
    """Return the variables of a Neuron or TensorRT-LLM image.

    Args:
        accelerators: Neuron devices, which have two cores each, or GPUs.
    """
    cores = 2 * accelerators if image.neuron else accelerators
    auto = image.rolling_batches[0]
    env = {
        "OPTION_TENSOR_PARALLEL_DEGREE": str(options.tensor_parallel or max(1, cores)),
        "OPTION_MAX_ROLLING_BATCH_SIZE": str(options.max_rolling_batch_size),
        "OPTION_ROLLING_BATCH": auto if options.rolling_batch == "auto" else options.rolling_batch,
    }
    if options.max_model_len:
        env |= sequence_variables(options.max_model_len, neuron=image.neuron)
    if options.dtype != "auto":
        env["OPTION_DTYPE"] = options.dtype
    if options.quantize:
        env["OPTION_QUANTIZE"] = options.quantize
    if image.tensorrt_llm:
        env["OPTION_KV_CACHE_FREE_GPU_MEM_FRACTION"] = f"{options.gpu_memory_utilization:g}"
    return env | ({"OPTION_TRUST_REMOTE_CODE": "true"} if options.trust_remote_code else {})


def sequence_variables(tokens: int, *, neuron: bool) -> dict[str, str]:
    """Return the variables that set the most tokens of a sequence.

    TensorRT-LLM's MAX_OUTPUT_LEN is the length of the whole sequence; LMI kept its old name.
    """
    if neuron:
        return {"OPTION_N_POSITIONS": str(tokens)}
    return {"OPTION_MAX_INPUT_LEN": str(tokens), "OPTION_MAX_OUTPUT_LEN": str(tokens)}
