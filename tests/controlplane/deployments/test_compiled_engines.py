"""LMI's images for compiled models: their variables have the engines' own names, without adapters."""

from __future__ import annotations

import pytest

from controlplane.deployments.containers.images import IMAGES
from controlplane.deployments.containers.options import LmiOptions
from controlplane.errors import InvalidInputError


def test_neuron_images_have_fixed_shapes_and_no_adapters() -> None:
    image = IMAGES["neuronx-0.30.0"]
    options = LmiOptions.from_values(
        {"enable_lora": False, "max_model_len": 4096, "max_rolling_batch_size": 8, "dtype": "bf16"}, image
    )
    assert options.environment(image, accelerators=12) == {
        "OPTION_TENSOR_PARALLEL_DEGREE": "24",
        "OPTION_MAX_ROLLING_BATCH_SIZE": "8",
        "OPTION_ROLLING_BATCH": "auto",
        "OPTION_N_POSITIONS": "4096",
        "OPTION_DTYPE": "bf16",
    }
    for values in ({}, {"enable_lora": False, "gpu_memory_utilization": 0.5}):
        with pytest.raises(InvalidInputError, match=r"not supported by neuronx-0\.30\.0"):
            LmiOptions.from_values(values, image)


def test_tensorrt_llm_images_have_the_engines_names() -> None:
    image = IMAGES["tensorrtllm-0.33.0"]
    values = {
        "enable_lora": False,
        "tensor_parallel": 4,
        "max_model_len": 8192,
        "max_rolling_batch_size": 16,
        "dtype": "bf16",
        "quantize": "awq",
        "gpu_memory_utilization": 0.8,
    }
    assert LmiOptions.from_values(values, image).environment(image, accelerators=1) == {
        "OPTION_TENSOR_PARALLEL_DEGREE": "4",
        "OPTION_MAX_ROLLING_BATCH_SIZE": "16",
        "OPTION_ROLLING_BATCH": "trtllm",
        "OPTION_MAX_INPUT_LEN": "8192",
        "OPTION_MAX_OUTPUT_LEN": "8192",
        "OPTION_DTYPE": "bf16",
        "OPTION_QUANTIZE": "awq",
        "OPTION_KV_CACHE_FREE_GPU_MEM_FRACTION": "0.8",
    }
    with pytest.raises(InvalidInputError, match="'gptq' is not supported by tensorrtllm"):
        LmiOptions.from_values({"enable_lora": False, "quantize": "gptq"}, image)
