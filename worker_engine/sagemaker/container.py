"""`serve`: how SageMaker starts an image, and what it tells the container by its environment.

Source: "Use your own inference code with hosting services" (`docker run IMAGE serve`, port 8080, artifacts
under /opt/ml/model) and LMI's configuration by OPTION_* variables.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from worker_engine.errors import ConfigError

log = logging.getLogger(__name__)

SERVE: Final = "serve"
_MODEL_DIR: Final = "/opt/ml/model"
"""Where SageMaker lays a model's files, and adapters that came in its archive under `adapters`."""
_PORT: Final = "8080"
_CACHE_DIR: Final = "/tmp/graftwork/adapters"  # noqa: S108  # the container's own, writable for any user
_PREFIX: Final = "OPTION_"
_FLAG_PREFIX: Final = "GRAFTWORK_WORKER_FLAG_"
"""GRAFTWORK_WORKER_FLAG_MEMORY_GIB=0.5 is --memory-gib 0.5."""
_FLAGS: Final = {
    "OPTION_MAX_ROLLING_BATCH_SIZE": "--max-num-seqs",
    "OPTION_MAX_MODEL_LEN": "--max-model-len",
    "OPTION_MAX_LORAS": "--max-adapters-per-batch",
}
_DTYPES: Final = {"bf16": "bfloat16", "bfloat16": "bfloat16", "fp32": "float32", "float32": "float32"}
_AS_IT_IS: Final = {
    "OPTION_ENABLE_LORA": ("true",),
    "OPTION_TENSOR_PARALLEL_DEGREE": ("1",),
    "OPTION_DTYPE": ("auto",),
    "OPTION_QUANTIZE": ("none",),
    "OPTION_ROLLING_BATCH": ("auto", "vllm"),
    "OPTION_TRUST_REMOTE_CODE": ("false",),
}
"""Values that say what this worker does anyway."""


def expand_arguments(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The worker's flags, where the first argument is `serve`; others are returned as they are.

    Flags behind `serve` win over the environment, and there GRAFTWORK_WORKER_FLAG_* over OPTION_*. What the
    environment asks for and the worker does not have is logged by name, since a value may be a secret, and
    left out: the images that read those variables have settings that it lacks. An empty one is none.

    Raises:
        ConfigError: a hub's model is asked for, which this worker does not fetch.
    """
    if not arguments or arguments[0] != SERVE:
        return list(arguments)
    told = {name: value for name, value in sorted(environment.items()) if value}
    flags = [
        "--model",
        _model(told.get("OPTION_MODEL_ID") or told.get("HF_MODEL_ID", "")),
        "--served-model-name",
        told.get("OPTION_SERVED_MODEL_NAME", "model"),
        "--host",
        "0.0.0.0",  # noqa: S104  # SageMaker's network alone reaches it: see GRAFTWORK_TRUST_NETWORK
        "--port",
        told.get("SAGEMAKER_BIND_TO_PORT", _PORT),
        "--adapter-cache-dir",
        _CACHE_DIR,
    ]
    own, unknown = [], []
    for name, value in told.items():
        if name in _FLAGS:
            flags += [_FLAGS[name], value]
        elif name.startswith(_FLAG_PREFIX):
            own += [f"--{name.removeprefix(_FLAG_PREFIX).lower().replace('_', '-')}", value]
        elif name == "OPTION_DTYPE" and value.lower() in _DTYPES:
            flags += ["--dtype", _DTYPES[value.lower()]]
        elif _is_left_out(name, value):
            unknown.append(name)
    if unknown:
        log.warning("the worker has no such settings, and goes on without: %s", ", ".join(unknown))
    return [*flags, *own, *arguments[1:]]


def _model(source: str) -> str:
    """The folder of the weights. From S3, SageMaker has laid them into its own; nobody fetches from a hub."""
    if source.startswith("/"):
        return source
    if source and not source.startswith("s3://") and not Path(_MODEL_DIR, "config.json").is_file():
        raise ConfigError(
            f"OPTION_MODEL_ID {source} is no folder, and {_MODEL_DIR} holds no config.json: give the "
            "container the checkpoint as ModelDataSource, or a folder of the image"
        )
    return _MODEL_DIR


def _is_left_out(name: str, value: str) -> bool:
    if not name.startswith(_PREFIX) or name in ("OPTION_MODEL_ID", "OPTION_SERVED_MODEL_NAME"):
        return False
    return value.lower() not in _AS_IT_IS.get(name, ())
