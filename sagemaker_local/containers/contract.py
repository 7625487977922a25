"""Environment and folders of a container at its start, and the error of one that does not start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sagemaker_local.copies.command import MODEL_FOLDER


class ContractError(Exception):
    """The real container would not start; the text is its reason."""


@dataclass(frozen=True, slots=True)
class Container:
    """A container at its start.

    Attributes:
        image: the image's address.
        environment: its variables.
        folders: folder on this host by folder in the container.
    """

    image: str
    environment: Mapping[str, str]
    folders: Mapping[str, Path]

    def local(self, path: str) -> Path:
        """Return the place on this host of a path in the container."""
        for folder, here in self.folders.items():
            if path == folder or path.startswith(f"{folder}/"):
                return here / path.removeprefix(folder).lstrip("/")
        return Path(path)

    def integer(self, name: str, *, least: int = 1) -> int | None:
        """Return a variable's value; None if it is not set. Raises ContractError."""
        text = self.environment.get(name)
        if text is None:
            return None
        if not text.isascii() or not text.isdecimal() or int(text) < least:
            raise ContractError(f"{name} must be an integer of at least {least}, got {text!r}")
        return int(text)

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Return a variable's value; "" if it is not set. Raises ContractError."""
        text = self.environment.get(name, "")
        if text and text not in choices:
            raise ContractError(f"{name} must be one of {', '.join(choices)}, got {text!r}")
        return text


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The worker that stands for the container's engine.

    Attributes:
        model: folder of the weights.
        flags: start-up flags.
        adapters: folder of each adapter by its name in requests.
    """

    model: Path
    flags: tuple[str, ...] = ()
    adapters: Mapping[str, Path] = field(default_factory=dict)


def weights_folder(container: Container, path: str, variable: str) -> Path:
    """Return a folder with a checkpoint. Raises ContractError if the engine would find none there."""
    folder = container.local(path)
    if not folder.is_dir():
        raise ContractError(
            f"{variable} is {path!r}, which is no folder in the container: SageMaker stores the files of "
            f"ModelDataSource in {MODEL_FOLDER}"
        )
    if not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
        raise ContractError(f"{path} has no config.json or no .safetensors weights")
    return folder


def adapter_folder(container: Container, path: str, name: str) -> Path:
    """Return a folder with an adapter. Raises ContractError."""
    folder = container.local(path)
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        if not (folder / file).is_file():
            raise ContractError(f"adapter {name}: {path} has no {file}")
    return folder
