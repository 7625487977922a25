"""Converts a pickled or sharded adapter into one safetensors file on this machine.

Loading a pickle can run code. A subprocess reads it with `weights_only`, which admits only tensors. In case
that is ever bypassed, the subprocess has limits on time, memory, files and child processes, and no
environment variables. It still has the user's own rights, so convert an untrusted pickle on a machine that
holds nothing else.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from graftwork.errors import ConfigurationError
from graftwork.folder import CONFIG, WEIGHTS
from graftwork.shards import SHARD_INDEX, merge_shards

SECONDS: Final = 600
PICKLES: Final = ("adapter_model.bin", "adapter_model.pt", "pytorch_model.bin")
_CHILD: Final = Path(__file__).with_name("unpickle.py")


def convert(source: Path, target: Path, *, seconds: float = SECONDS) -> Path:
    """Writes an adapter folder like `source`, with one file of safetensors in place of its pickle or shards.

    Args:
        target: a folder that does not exist yet. On an error it still does not.
        seconds: time limit.

    Raises:
        ConfigurationError: torch or safetensors is missing, `source` holds no adapter, or its pickle holds
            more than tensors; the text says which.
    """
    check_libraries()
    if not (source / SHARD_INDEX).is_file():
        _pickle(source)
    if not (source / CONFIG).is_file():
        raise ConfigurationError(
            f"{source} has no {CONFIG}: give the folder written by PEFT's save_pretrained"
        )
    if target.exists():
        raise ConfigurationError(f"{target} already exists: name a new folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".graftwork-") as folder:
        made = Path(folder) / "adapter"
        made.mkdir()
        make_weights(source, made, seconds=seconds)
        shutil.copyfile(source / CONFIG, made / CONFIG)
        made.rename(target)
    return target


def check_libraries() -> None:
    """Raises ConfigurationError if torch or safetensors, which conversions need, is missing."""
    if missing := [name for name in ("torch", "safetensors") if find_spec(name) is None]:
        raise ConfigurationError(f"the conversion requires {missing[0]}: pip install torch safetensors")


def make_weights(source: Path, folder: Path, *, seconds: float = SECONDS) -> None:
    """Writes one file of safetensors of the shards or the pickle in `source` to the empty folder `folder`.

    Raises:
        ConfigurationError: `source` holds neither, or more than tensors; the text says which.
    """
    if (source / SHARD_INDEX).is_file():
        merge_shards(source, folder / WEIGHTS)
    else:
        _run(_pickle(source).resolve(), folder, seconds)


def _pickle(source: Path) -> Path:
    found = next((source / name for name in PICKLES if (source / name).is_file()), None)
    if found is None:
        raise ConfigurationError(f"{source} holds none of {', '.join(PICKLES)}: there is nothing to convert")
    return found


def _run(pickle: Path, folder: Path, seconds: float) -> None:
    weights = folder / WEIGHTS
    command = [sys.executable, "-I", str(_CHILD), str(pickle), str(weights.resolve()), str(int(seconds) + 1)]
    bare = {"PATH": os.defpath, "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command,
            env=bare,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=seconds,
            check=False,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        raise ConfigurationError(
            f"{pickle} exceeded the time limit of {seconds:g} seconds: nothing is converted"
        ) from None
    if done.returncode != 0:
        told = done.stderr.decode(errors="replace").strip().splitlines()
        reason = told[-1][:500] if told else f"the converting process ended with {done.returncode}"
        raise ConfigurationError(f"{pickle} cannot be converted: {reason}")
    # A compromised subprocess could have put a link in the file's place.
    if not stat.S_ISREG(os.lstat(weights).st_mode) or {path.name for path in folder.iterdir()} != {WEIGHTS}:
        raise ConfigurationError(f"{pickle} made more than one plain file: do not trust it")
