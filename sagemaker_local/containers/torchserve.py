"""PyTorch's container contract: TorchServe as sagemaker-pytorch-inference-toolkit starts it.

The image has neither vLLM nor transformers, so a language model needs a handler and an installation of its
own, which the local SageMaker does not run: it says what the container would need.
"""

from __future__ import annotations

from typing import NoReturn

from sagemaker_local.containers.contract import Container, ContractError
from sagemaker_local.copies.command import MODEL_FOLDER


def settings(container: Container) -> NoReturn:
    """Check the model's archive. Raises ContractError in every case; see the module."""
    folder = container.local(MODEL_FOLDER)
    archive = (folder / "MAR-INF" / "MANIFEST.json").is_file()
    script = (folder / "code" / "inference.py").is_file()
    if not archive and not script and not any(folder.glob("*.pt")) and not any(folder.glob("*.pth")):
        raise ContractError(
            f"{MODEL_FOLDER} has no MAR-INF/MANIFEST.json, no code/inference.py and no .pt or .pth file, one "
            "of which TorchServe needs"
        )
    raise ContractError(
        "TorchServe's handlers are not run by the local SageMaker, and the image has no engine for language "
        "models: use an image of LMI, TGI or Triton"
    )
