"""The pooling files of an embedding adapter: checked as far as any backend needs, and dropped for others."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from contracts.adapters.pooling import PoolingError, parse_pooling
from contracts.adapters.reference import POOLING_FILES
from contracts.capabilities.traits import Trait
from controlplane.artifacts.store.base import ArtifactStore
from controlplane.artifacts.uploads.file_names import FILE_LIMITS
from controlplane.errors import RefusedError

_CONFIG, _MODULES = POOLING_FILES


def pooling_take(store: ArtifactStore, staging: str, *, embeds_only: bool) -> dict[str, bytes]:
    """Return the staged pooling files of an embedding adapter by name; remove those of another one.

    Raises:
        RefusedError: they are malformed, or name a pooling that is missing.
    """
    files: dict[str, bytes] = {}
    for name in POOLING_FILES:
        if store.size(f"{staging}/{name}") is None:
            continue
        if not embeds_only:
            store.remove_file(f"{staging}/{name}")
            continue
        with store.open(f"{staging}/{name}") as stream:
            files[name] = stream.read(FILE_LIMITS[name])
    _check(files)
    return files


def pooling_digests(files: dict[str, bytes]) -> dict[str, str]:
    """Return each file's SHA-256, for the adapter's digest."""
    return {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}


def pooling_traits(files: dict[str, bytes]) -> frozenset[Trait]:
    """Return the traits of an adapter with these pooling files, which `pooling_take` returned."""
    if not files:
        return frozenset()
    try:
        parse_pooling(files.get)
    except PoolingError:
        return frozenset({Trait.OTHER_POOLING})
    return frozenset({Trait.OWN_POOLING})


def _check(files: dict[str, bytes]) -> None:
    """Raise RefusedError unless modules.json names a pooling that is among the files, or none."""
    parsed = {name: _parse(name, data) for name, data in files.items()}
    for module in parsed.get(_MODULES, ()):
        kind = str(module.get("type", "")) if isinstance(module, dict) else ""
        if kind.rpartition(".")[2] != "Pooling":
            continue
        folder = str(module.get("path", ""))
        if f"{folder}/config.json" != _CONFIG or _CONFIG not in files:
            raise RefusedError(
                f"{_MODULES} names a pooling in {folder[:100]!r}, and {_CONFIG} must come with it: register "
                "the adapter's whole folder as an archive, by its URI, or as finished uploads of these names"
            )


def _parse(name: str, data: bytes) -> Any:
    kind, form = (list, "array") if name == _MODULES else (dict, "object")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"{name} cannot be read: {error}") from error
    if not isinstance(value, kind):
        raise RefusedError(f"{name} must hold a JSON {form}")
    return value
