"""The files and the environment of PyTorch's SageMaker images, which run TorchServe.

Layout and variables are those of sagemaker-inference 1.10 and sagemaker-pytorch-inference 2.0.25, which start
TorchServe 0.12:

    code/inference.py       the handler; see pytorch_inference.py
    code/requirements.txt   what pip installs at the container's start
    code/settings.json      the checkpoint and the folder of each adapter by its name
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from controlplane.deployments.containers.options import LmiOptions

REQUIREMENTS: Final = ("transformers==5.23.0", "peft==0.21.2", "accelerate==1.15.0")
"""Releases that serve with the torch 2.6 of the images, and with which the handler is tested."""
_PROGRAM: Final = "inference.py"
_STREAM_SECONDS: Final = 480
"""SageMaker's own limit of a streamed answer."""
_START_SECONDS: Final = 3600
"""SageMaker's longest start; TorchServe itself waits two minutes for the weights."""


def pytorch_environment() -> dict[str, str]:
    """Return the container's environment variables."""
    return {
        "SAGEMAKER_PROGRAM": _PROGRAM,
        "SAGEMAKER_SUBMIT_DIRECTORY": "/opt/ml/model/code",
        # Each worker process has weights of its own; the default is one for each GPU or processor.
        "SAGEMAKER_MODEL_SERVER_WORKERS": "1",
        # The toolkit's own variable has no effect: it is written to the end of another line.
        "TS_DEFAULT_RESPONSE_TIMEOUT": str(_STREAM_SECONDS),
        "TS_DEFAULT_STARTUP_TIMEOUT": str(_START_SECONDS),
    }


def pytorch_files(
    options: LmiOptions, *, model: str, revision: str, accelerators: int, adapters: Mapping[str, str]
) -> dict[str, str]:
    """Return the texts of the model data's files by path; see `triton_repository`. One GPU serves."""
    settings = {
        "model": model,
        "revision": revision,
        "dtype": options.dtype,
        "max_model_len": options.max_model_len,
        "trust_remote_code": options.trust_remote_code,
        "adapters": dict(sorted(adapters.items())),
    }
    return {
        f"code/{_PROGRAM}": Path(__file__).with_name("pytorch_inference.py").read_text(),
        "code/requirements.txt": "\n".join(REQUIREMENTS) + "\n",
        "code/settings.json": json.dumps(settings),
    }
