"""Tuned configurations: measured per GPU by `python -m kernels.tune`, loaded by the ops.

A file is `{gpu}_{op}.json` in `kernels/configs/`, or in the folder GRAFTWORK_TUNED_CONFIG_DIR; gpu is the
device's name with `_` for spaces. Without a file an op runs its built-in configurations.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

if TYPE_CHECKING:
    import torch

Config = TypeVar("Config")
Shape = Mapping[str, int]

FOLDER: Final = Path(__file__).parent / "configs"
VARIABLE: Final = "GRAFTWORK_TUNED_CONFIG_DIR"
KEYS: Final = {"op", "gpu", "measured_on", "torch", "triton", "date", "entries"}
ENTRY_KEYS: Final = {"shape", "config", "microseconds", "default_microseconds", "tried"}
TRIALS: Final = "trials"
"""Present only in an entry with an unfinished search: every configuration tried so far and its microseconds.
"""

logger = logging.getLogger(__name__)
_loaded: Final = set[str]()


@dataclass(frozen=True, slots=True)
class Entry(Generic[Config]):
    """The fastest configuration at one shape.

    Attributes:
        shape: a value of each level.
        microseconds: as measured. The file also has those of the built-in configuration, and the number of
            configurations tried.
    """

    shape: Shape
    config: Config
    microseconds: float


@dataclass(frozen=True, slots=True)
class Tuned(Generic[Config]):
    """The entries of one GPU and op; `levels` are the names of a shape's numbers, most significant first."""

    entries: tuple[Entry[Config], ...]
    levels: tuple[str, ...]

    def nearest(self, wanted: Shape) -> Entry[Config]:
        """Return the nearest entry: level by level, keep the values nearest by ratio; the smaller value on a
        tie.
        """
        candidates = self.entries
        for level in self.levels:
            best = min(
                (entry.shape[level] for entry in candidates),
                key=lambda value: (abs(math.log(value / wanted[level])), value),
            )
            candidates = tuple(entry for entry in candidates if entry.shape[level] == best)
        return candidates[0]


def load(
    op: str, device: torch.device, levels: tuple[str, ...], parse: Callable[[Mapping[str, object]], Config]
) -> Tuned[Config] | None:
    """Return the device's tuned configurations of an op; None if it has none. Each file is read once.

    Args:
        levels: names of a shape's numbers, most significant first.
        parse: converts an entry to a configuration; raises ValueError if malformed.

    Raises:
        ValueError: a malformed file, an unknown key or value, a file for CUDA that was not measured there, or
            a folder that does not exist.
    """
    path = folder() / file_name(gpu_name(device), op)
    found: Tuned[Config] | None = _read(path, op, device.type, levels, parse)
    return found


def folder() -> Path:
    """Return the folder of tuned configurations. Raises ValueError if GRAFTWORK_TUNED_CONFIG_DIR is none."""
    named = os.environ.get(VARIABLE)
    if named and not Path(named).is_dir():
        raise ValueError(f"{VARIABLE}: {named} is not a folder; unset it to use those in {FOLDER}")
    return Path(named or FOLDER)


def loaded_files() -> tuple[str, ...]:
    """Return the names of the files whose configurations this process uses, sorted."""
    return tuple(sorted(_loaded))


def gpu_name(device: torch.device) -> str:
    """Return the device's name as in file names."""
    if device.type != "cuda":
        return device.type
    import torch

    return torch.cuda.get_device_name(device).replace(" ", "_")


def file_name(gpu: str, op: str) -> str:
    return f"{gpu}_{op}.json"


@lru_cache(maxsize=64)
def _read(
    path: Path, op: str, device: str, levels: tuple[str, ...], parse: Callable[..., Any]
) -> Tuned[Any] | None:
    if not path.exists():
        logger.debug("no tuned configurations at %s: built-in ones are used", path)
        return None
    content = document(path)
    if content["op"] != op:
        raise ValueError(f"{path}: op is {content['op']!r}; expected {op!r}")
    if content["measured_on"] != device:
        raise ValueError(f"{path}: measured_on is {content['measured_on']!r}; expected {device!r}")
    entries = tuple(
        _entry(f"{path}: entries[{number}]", entry, levels, parse)
        for number, entry in enumerate(content["entries"])
    )
    if not entries:
        return None
    _loaded.add(path.name)
    return Tuned(entries, levels)


def document(path: Path) -> dict[str, Any]:
    """Return a file's content after checking its outer keys.

    Raises:
        ValueError: naming the file and the key.
    """
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: not JSON: {error}") from error
    _check_keys(str(path), content, KEYS)
    if not isinstance(content["entries"], list):
        raise ValueError(f"{path}: entries is {type(content['entries']).__name__}; expected a list")
    return content


def _entry(
    place: str, entry: object, levels: tuple[str, ...], parse: Callable[[Mapping[str, object]], Config]
) -> Entry[Config]:
    _check_keys(place, entry, ENTRY_KEYS, optional=TRIALS)
    assert isinstance(entry, dict)
    shape, config = entry["shape"], entry["config"]
    _check_keys(f"{place}: shape", shape, set(levels))
    for level, value in shape.items():
        if type(value) is not int or value < 1:
            raise ValueError(f"{place}: shape: {level} is {value!r}; expected a positive integer")
    if not isinstance(entry["microseconds"], int | float):
        raise ValueError(f"{place}: microseconds is {entry['microseconds']!r}; expected a number")
    if not isinstance(config, dict):
        raise ValueError(f"{place}: config is {config!r}; expected an object")
    try:
        return Entry(shape, parse(config), float(entry["microseconds"]))
    except ValueError as error:
        raise ValueError(f"{place}: config: {error}") from error


def _check_keys(place: str, content: object, expected: set[str], *, optional: str = "") -> None:
    if not isinstance(content, dict):
        raise ValueError(f"{place}: {type(content).__name__}; expected an object")
    if unknown := sorted(content.keys() - expected - {optional}):
        raise ValueError(f"{place}: unknown {', '.join(unknown)}; expected {', '.join(sorted(expected))}")
    if missing := sorted(expected - content.keys()):
        raise ValueError(f"{place}: {', '.join(missing)} missing")
