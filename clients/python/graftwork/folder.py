"""An adapter's folder on this machine, and the files to upload from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from graftwork.errors import ConfigurationError
from graftwork.shards import SHARD_INDEX

Progress = Callable[[int, int], None]
"""Called with (bytes sent, bytes in all)."""

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PICKLES: Final = ("adapter_model.bin", "adapter_model.pt", "pytorch_model.bin")
_OTHER_FORMS: Final = {
    SHARD_INDEX: (
        "the weights were saved in shards, which PEFT does not load either: make one file of them with"
        " `graftwork convert FOLDER NEW_FOLDER`"
    ),
    "adapters.safetensors": (
        "the adapter was saved by mlx-lm, whose tensors have other names and shapes than PEFT's: train it"
        " with PEFT, or rename and transpose its tensors as PEFT has them"
    ),
}
"""File name -> how to convert weights in this format."""


class AdapterFolder:
    """The two files of a PEFT folder. Raises ConfigurationError when one is missing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_dir():
            raise ConfigurationError(
                f"{path} is not a folder: give the folder written by PEFT's save_pretrained"
            )
        for name in (CONFIG, WEIGHTS):
            if not (path / name).is_file():
                raise ConfigurationError(self._missing(name))

    @property
    def size(self) -> int:
        """Bytes of both files."""
        return sum(file.stat().st_size for file in self.files)

    @property
    def base_model(self) -> str | None:
        """The base model's name in the configuration, if it is stated."""
        try:
            config: Any = json.loads((self.path / CONFIG).read_bytes())
            named = config["base_model_name_or_path"]
        except (ValueError, KeyError, TypeError):
            return None
        return named if isinstance(named, str) else None

    @property
    def files(self) -> tuple[Path, ...]:
        """Both files, the small one first."""
        return self.path / CONFIG, self.path / WEIGHTS

    def _missing(self, name: str) -> str:
        for other, advice in _OTHER_FORMS.items():
            if name == WEIGHTS and (self.path / other).exists():
                return f"{self.path / other}: {advice}"
        for pickle in _PICKLES:
            if name == WEIGHTS and (self.path / pickle).exists():
                return (
                    f"{self.path / pickle} is a pickle, which the server refuses:"
                    f" convert it with `graftwork convert {self.path} <new folder>`"
                )
        if name == CONFIG and (checkpoints := self._checkpoints()):
            return f"{self.path} has no {name}: choose one of its checkpoints, such as {checkpoints[-1]}"
        return f"{self.path} has no {name}: give the folder written by PEFT's save_pretrained"

    def _checkpoints(self) -> list[Path]:
        """Returns the trainer's checkpoint folders, oldest first."""
        found = [path for path in self.path.glob("checkpoint-*") if (path / CONFIG).is_file()]
        return sorted(found, key=lambda path: (len(path.name), path.name))
