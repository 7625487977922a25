"""A model repository for Triton with its vLLM backend, and the container's environment.

Layout and variables are those of docker/sagemaker/serve (25.03 and later) and of vllm_backend's README:

    chat/config.pbtxt, chat/1/model.py          requests; see triton_chat.py
    engine/config.pbtxt, engine/1/model.json    vLLM's engine arguments
    engine/1/multi_lora.json                    folder of each adapter by its name
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from controlplane.deployments.containers.options import LmiOptions

_CHAT, _ENGINE = "chat", "engine"
_DTYPES: Final = {"auto": "auto", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
_CHAT_CONFIG: Final = """name: "chat"
backend: "python"
model_transaction_policy { decoupled: true }
input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
parameters { key: "settings" value: { string_value: %s } }
"""
_ENGINE_CONFIG: Final = """name: "engine"
backend: "vllm"
instance_group [ { count: 1 kind: KIND_MODEL } ]
"""


def triton_environment() -> dict[str, str]:
    """Return the container's environment variables."""
    return {
        "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": _CHAT,
        "SAGEMAKER_TRITON_ADDITIONAL_ARGS": f"--load-model={_ENGINE}",
        "SAGEMAKER_TRITON_INFERENCE_TYPE": "generate_stream",
        "SAGEMAKER_TRITON_LOG_VERBOSE": "false",
    }


def triton_repository(
    options: LmiOptions, *, model: str, revision: str, accelerators: int, adapters: Mapping[str, str]
) -> dict[str, str]:
    """Return the texts of the repository's files by path.

    Args:
        model: hub id, or a folder in the container.
        adapters: folder in the container by engine name.
    """
    settings = {
        "engine": _ENGINE,
        "tokenizer": model,
        "revision": revision,
        "max_model_len": options.max_model_len,
        "trust_remote_code": options.trust_remote_code,
        "adapters": sorted(adapters),
    }
    # A JSON string is a string of protobuf's text format too.
    files = {
        f"{_CHAT}/config.pbtxt": _CHAT_CONFIG % json.dumps(json.dumps(settings)),
        f"{_CHAT}/1/model.py": Path(__file__).with_name("triton_chat.py").read_text(),
        f"{_ENGINE}/config.pbtxt": _ENGINE_CONFIG,
        f"{_ENGINE}/1/model.json": json.dumps(_engine_arguments(options, model, revision, accelerators)),
    }
    if options.enable_lora:
        files[f"{_ENGINE}/1/multi_lora.json"] = json.dumps(dict(sorted(adapters.items())))
    return files


def _engine_arguments(options: LmiOptions, model: str, revision: str, accelerators: int) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "model": model,
        "tensor_parallel_size": options.tensor_parallel or max(1, accelerators),
        "max_num_seqs": options.max_rolling_batch_size,
        "gpu_memory_utilization": options.gpu_memory_utilization,
        "dtype": _DTYPES[options.dtype],
        # The backend passes no cache salt, so tenants would see by a prompt's time what others have asked.
        "enable_prefix_caching": False,
    }
    if revision:
        arguments["revision"] = revision
    if options.max_model_len:
        arguments["max_model_len"] = options.max_model_len
    if options.quantize:
        arguments["quantization"] = options.quantize
    if options.trust_remote_code:
        arguments["trust_remote_code"] = True
    if options.enable_lora:
        arguments |= {
            "enable_lora": True,
            "max_loras": options.max_loras,
            "max_lora_rank": options.max_lora_rank,
            "max_cpu_loras": options.cpu_loras,
        }
        if options.fully_sharded_loras:
            arguments["fully_sharded_loras"] = True
    return arguments
