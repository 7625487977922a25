"""`serve`: how SageMaker starts an image, and what it tells the container by its environment.

Source: "Use your own inference code with hosting services" (`docker run IMAGE serve`, port 8080, artifacts
under /opt/ml/model) and LMI's configuration by OPTION_* variables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from worker_engine.errors import ConfigError
from worker_engine.sagemaker.container_options import DTYPES, PREFIX, is_served, remedy

SERVE: Final = "serve"
_MODEL_DIR: Final = "/opt/ml/model"
"""Where SageMaker lays a model's files, and adapters that came in its archive under `adapters`."""
_PORT: Final = "8080"
_CACHE_DIR: Final = "/tmp/graftwork/adapters"  # noqa: S108  # the container's own, writable for any user
_FLAG_PREFIX: Final = "GRAFTWORK_WORKER_FLAG_"
"""GRAFTWORK_WORKER_FLAG_MEMORY_GIB=0.5 is --memory-gib 0.5."""
_FLAGS: Final = {
    "OPTION_MAX_ROLLING_BATCH_SIZE": "--max-num-seqs",
    "OPTION_MAX_MODEL_LEN": "--max-model-len",
    "OPTION_MAX_LORAS": "--max-adapters-per-batch",
}
_SPECULATION: Final = {"ngram": "ngram", "draft_model": "draft"}
"""Methods of vLLM that the worker has, and its `--speculation` for them."""


def expand_arguments(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The worker's flags, where the first argument is `serve`; others are returned as they are.

    Flags after `serve` win over the environment, and there GRAFTWORK_WORKER_FLAG_* over OPTION_*. An empty
    variable counts as unset.

    Raises:
        ConfigError: the environment has settings that the worker does not serve, or names a model of a hub.
            The message has no values, which may be secrets.
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
    refused = [name for name, value in told.items() if name.startswith(PREFIX) and not is_served(name, value)]
    if refused:
        listed = "; ".join(f"{name}: {remedy(name)}" for name in refused)
        raise ConfigError(f"the worker does not support these settings as they are: {listed}")
    own = []
    for name, value in told.items():
        if name in _FLAGS:
            flags += [_FLAGS[name], value]
        elif name.startswith(_FLAG_PREFIX):
            own += [f"--{name.removeprefix(_FLAG_PREFIX).lower().replace('_', '-')}", value]
        elif name == "OPTION_DTYPE" and value.lower() in DTYPES:
            flags += ["--dtype", DTYPES[value.lower()]]
        elif name == "OPTION_SPECULATIVE_CONFIG":
            flags += _speculation(value)
    return [*flags, *own, *arguments[1:]]


def _speculation(text: str) -> list[str]:
    """Return the flags for vLLM's speculative configuration. Raises ConfigError if it is not served."""
    try:
        config: Any = json.loads(text)
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise ConfigError("OPTION_SPECULATIVE_CONFIG must be a JSON object")
    method = config.get("method", "draft_model")
    if method not in _SPECULATION or not isinstance(config.get("num_speculative_tokens", 1), int):
        raise ConfigError(
            f"OPTION_SPECULATIVE_CONFIG: method must be one of {', '.join(_SPECULATION)}, and"
            " num_speculative_tokens an integer"
        )
    flags = ["--speculation", _SPECULATION[method]]
    if "num_speculative_tokens" in config:
        flags += ["--speculation-tokens", str(config["num_speculative_tokens"])]
    if method == "draft_model":
        flags += ["--draft-model", str(config.get("model", ""))]
    return flags


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
