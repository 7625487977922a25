"""Triton's container contract: docker/sagemaker/serve, and how its vLLM backend reads a model."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sagemaker_local.containers.contract import (
    Container,
    ContractError,
    WorkerSettings,
    adapter_folder,
    weights_folder,
)
from sagemaker_local.copies.command import MODEL_FOLDER

_TYPES: Final = ("infer", "generate", "generate_stream")
_TAG: Final = re.compile(r":(\d\d)\.(\d\d)-(.*)$")
_GENERATE_FROM: Final = (25, 3)
_FIELD: Final = r'\b%s\s*:\s*"((?:[^"\\]|\\.)*)"'
_PARAMETER: Final = re.compile(
    r'key\s*:\s*"([^"]+)"\s*value\s*:\s*\{\s*string_value\s*:\s*"((?:[^"\\]|\\.)*)"'
)
_DTYPES: Final = ("auto", "half", "float16", "bfloat16", "float", "float32")


@dataclass(frozen=True, slots=True)
class Model:
    """A model of the repository; `parameters` are its configuration's."""

    name: str
    backend: str
    folder: Path
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Repository:
    """The loaded models; `default` answers /invocations, in the form `inference_type`."""

    default: str
    inference_type: str
    models: Mapping[str, Model]


def settings(container: Container) -> WorkerSettings:
    """Check the container as Triton does at its start, and return the worker's settings.

    Raises:
        ContractError: Triton would not start, or would not load a model.
    """
    engines = [item for item in repository(container).models.values() if item.backend == "vllm"]
    if len(engines) != 1:
        raise ContractError("the local SageMaker serves a repository with one model of backend vllm")
    return _engine(container, engines[0])


def repository(container: Container) -> Repository:
    """Return the model repository. Raises ContractError."""
    env, folder = container.environment, container.local(MODEL_FOLDER)
    if (folder / "config.pbtxt").is_file():
        raise ContractError(
            "Incorrect directory structure. Model directory needs to contain the top level folder"
        )
    kind = env.get("SAGEMAKER_TRITON_INFERENCE_TYPE", "infer")
    if kind not in _TYPES:
        raise ContractError(f"Invalid SAGEMAKER_TRITON_INFERENCE_TYPE {kind!r}: one of {', '.join(_TYPES)}")
    default = env.get("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", "")
    if default and not (folder / default).is_dir():
        text = f"Directory with provided SAGEMAKER_TRITON_DEFAULT_MODEL_NAME {default} does not exist"
        raise ContractError(text)
    if not default:
        found = sorted(item.name for item in folder.iterdir() if item.is_dir())
        if len(found) != 1:
            few = "No model found" if not found else "More than 1 model directory found"
            raise ContractError(f"{few} in model repository: set SAGEMAKER_TRITON_DEFAULT_MODEL_NAME")
        (default,) = found
    words = shlex.split(env.get("SAGEMAKER_TRITON_ADDITIONAL_ARGS", ""))
    more = [word.removeprefix("--load-model=") for word in words if word.startswith("--load-model=")]
    models = {name: _model(folder, name) for name in dict.fromkeys((default, *more))}
    _check_image(container, kind, models)
    return Repository(default, kind, models)


def _check_image(container: Container, kind: str, models: Mapping[str, Model]) -> None:
    """Refuse what the image's tag excludes."""
    tag = _TAG.search(container.image)
    if any(item.backend == "vllm" for item in models.values()):
        if tag is not None and "vllm" not in tag[3]:
            raise ContractError("unable to find backend library for backend 'vllm': the image has none")
        if kind == "infer" or (tag is not None and (int(tag[1]), int(tag[2])) < _GENERATE_FROM):
            raise ContractError(
                "a decoupled model cannot be called by infer: SAGEMAKER_TRITON_INFERENCE_TYPE must be "
                "generate or generate_stream, from 25.03 on"
            )


def _model(repository: Path, name: str) -> Model:
    folder = repository / name
    if not (folder / "config.pbtxt").is_file():
        raise ContractError(f"failed to load {name!r}: failed to poll from model repository: no config.pbtxt")
    text = (folder / "config.pbtxt").read_text()
    backend = re.search(_FIELD % "backend", text)
    if backend is None:
        raise ContractError(f"failed to load {name!r}: must specify 'platform' or 'backend'")
    if backend[1] == "python" and not (folder / "1" / "model.py").is_file():
        raise ContractError(f"failed to load {name!r}: 1/model.py does not exist")
    if backend[1] not in ("python", "vllm"):
        raise ContractError(f"the local SageMaker serves backends python and vllm, not {backend[1]}")
    parameters = {key: json.loads(f'"{value}"') for key, value in _PARAMETER.findall(text)}
    return Model(name, backend[1], folder, parameters)


def _engine(container: Container, model: Model) -> WorkerSettings:
    file = model.folder / "1" / "model.json"
    if not file.is_file():
        raise ContractError("'model.json' containing vllm engine args must be provided in '1'")
    try:
        given: dict[str, Any] = json.loads(file.read_text())
        weights = str(given["model"])
    except (ValueError, KeyError, TypeError) as error:
        raise ContractError(f"{model.name}/1/model.json is no object of vLLM's engine arguments") from error
    parallel = int(given.get("tensor_parallel_size", 1))
    if parallel > 1 and "KIND_GPU" in (model.folder / "config.pbtxt").read_text():
        raise ContractError("KIND_GPU is currently for single-GPU models, please specify KIND_MODEL")
    if (dtype := given.get("dtype", "auto")) not in _DTYPES:
        raise ContractError(f"model.json: dtype must be one of {', '.join(_DTYPES)}, got {dtype!r}")
    flags = [
        *(("--max-model-len", str(given["max_model_len"])) if given.get("max_model_len") else ()),
        *(("--max-num-seqs", str(given["max_num_seqs"])) if given.get("max_num_seqs") else ()),
        *(("--dtype", dtype) if dtype in ("bfloat16", "float32") else ()),
    ]
    if not weights.startswith("/"):
        raise ContractError(
            f"model {weights} is on the hub, from which the local SageMaker downloads nothing"
        )
    folder = weights_folder(container, weights, "model.json's model")
    return WorkerSettings(folder, tuple(flags), _adapters(container, model, given))


def _adapters(container: Container, model: Model, given: Mapping[str, Any]) -> dict[str, Path]:
    if str(given.get("enable_lora", "")).lower() != "true":
        return {}
    file = model.folder / "1" / "multi_lora.json"
    if not file.is_file():
        raise ContractError(f"Triton backend cannot find {model.name}/1/multi_lora.json")
    return {
        name: adapter_folder(container, path, name) for name, path in json.loads(file.read_text()).items()
    }
