"""The identity of an adapter in a folder."""

from __future__ import annotations

import hashlib
from pathlib import Path

from contracts.adapters.config import LoraConfig
from contracts.adapters.reference import ADAPTER_FILES, adapter_digest


def folder_digest(folder: Path) -> tuple[LoraConfig, str]:
    """Return an adapter's configuration, and the digest that registration and worker give its files.

    Raises:
        OSError: a file of `ADAPTER_FILES` cannot be read.
        AdapterConfigError: adapter_config.json is malformed or not supported.
    """
    config = LoraConfig.from_bytes((folder / ADAPTER_FILES[0]).read_bytes())
    extra = [name for name in config.extra_files if (folder / name).is_file()]
    return config, adapter_digest({name: _sha256(folder / name) for name in (*ADAPTER_FILES, *extra)})


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
