"""The pooling of a checkpoint's embeddings: as its sentence-transformers files say, or the last token's
state.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from worker_engine.errors import CheckpointError
from worker_engine.protocol import Pooling

_MODULES: Final = "modules.json"
_DEFAULT: Final = Path("1_Pooling", "config.json")
_MODE: Final = "pooling_mode"
_MODES: Final = {
    **{str(pooling): pooling for pooling in Pooling},
    "pooling_mode_lasttoken": Pooling.LAST,
    "pooling_mode_mean_tokens": Pooling.MEAN,
    "pooling_mode_cls_token": Pooling.FIRST,
}
_KNOWN: Final = ("Transformer", "Pooling", "Normalize")
"""Supported modules. Others, such as Dense, have weights that are not supported."""


def read_pooling(folder: Path) -> Pooling:
    """Return the checkpoint's pooling; by default the last token, the only one that attends to all others.

    Raises:
        CheckpointError: naming a file that is malformed, or a module or mode that is not supported.
    """
    path = folder / _DEFAULT
    if (folder / _MODULES).is_file():
        named = _pooling_module(folder)
        if named is None:
            return Pooling.LAST
        path = folder / named / "config.json"
    if not path.is_file():
        return Pooling.LAST
    config = _read(path, dict)
    modes = [name for name, on in config.items() if name.startswith(f"{_MODE}_") and on is True]
    modes += [str(config[_MODE])] if _MODE in config else []
    served = [_MODES[mode] for mode in modes if mode in _MODES]
    if len(modes) != 1 or not served:
        names = ", ".join(modes) or "none"
        raise CheckpointError(f"{path}: one of lasttoken, mean and cls pooling is served, not {names}")
    return served[0]


def _pooling_module(folder: Path) -> str | None:
    """Return the folder of the pooling module in modules.json; None if it lists none."""
    path, found = folder / _MODULES, None
    for module in _read(path, list):
        kind = str(module.get("type", "")) if isinstance(module, dict) else ""
        name = kind.rpartition(".")[2]
        if name not in _KNOWN:
            raise CheckpointError(
                f"{path}: module {kind or module!r} is not served, only {', '.join(_KNOWN)}"
            )
        if name == "Pooling":
            found = str(module.get("path", ""))
    if found is not None and Path(found).name != found:
        raise CheckpointError(f"{path}: the pooling module must lie in a folder beside it, got {found!r}")
    return found


def _read(path: Path, kind: type) -> Any:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    if not isinstance(value, kind):
        raise CheckpointError(f"{path} must hold a JSON {'object' if kind is dict else 'array'}")
    return value
