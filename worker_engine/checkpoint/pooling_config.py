"""The pooling of embeddings, as the sentence-transformers files of a checkpoint or an adapter say."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from worker_engine.errors import CheckpointError
from worker_engine.protocol import Pooling, PoolingParams

Read = Callable[[str], bytes | None]
"""Returns the content of the file with this relative path; None if there is none."""

_MODULES: Final = "modules.json"
_FOLDER: Final = "1_Pooling"
_CONFIG: Final = "config.json"
_MODE: Final = "pooling_mode"
_MODES: Final = {
    **{str(pooling): pooling for pooling in Pooling},
    "pooling_mode_lasttoken": Pooling.LAST,
    "pooling_mode_mean_tokens": Pooling.MEAN,
    "pooling_mode_cls_token": Pooling.FIRST,
}
_KNOWN: Final = ("Transformer", "Pooling", "Normalize")
"""Supported modules. Others, such as Dense, have weights that are not supported."""


def read_pooling(folder: Path) -> PoolingParams:
    """Return a checkpoint's pooling; see `parse_pooling`. Raises CheckpointError."""

    def read(name: str) -> bytes | None:
        path = folder / name
        try:
            return path.read_bytes() if path.is_file() else None
        except OSError as error:
            raise CheckpointError(f"cannot read {path}: {error}") from error

    return parse_pooling(read, where=f"{folder}/") or PoolingParams()


def parse_pooling(read: Read, *, where: str = "") -> PoolingParams | None:
    """Return the pooling that the files say; None if they say nothing.

    Without `modules.json` embeddings are scaled to length 1, as OpenAI's are. With it they are if it lists
    `Normalize`, as in sentence-transformers and vLLM. Where no file names a mode, it is the last token: the
    only one that attends to all others.

    Args:
        where: prefix of the files' names in errors.

    Raises:
        CheckpointError: naming a file that is malformed, or a module or mode that is not supported.
    """
    path, normalize, data = f"{_FOLDER}/{_CONFIG}", True, read(_MODULES)
    if data is not None:
        folder, normalize = _modules(_parse(data, list, where + _MODULES), where + _MODULES)
        if folder is None:
            return PoolingParams(normalize=normalize)
        path = f"{folder}/{_CONFIG}".lstrip("/")
    if (config := read(path)) is None:
        return None if data is None else PoolingParams(normalize=normalize)
    return PoolingParams(_mode(_parse(config, dict, where + path), where + path), normalize)


def _mode(config: Mapping[str, Any], path: str) -> Pooling:
    modes = [name for name, on in config.items() if name.startswith(f"{_MODE}_") and on is True]
    modes += [str(config[_MODE])] if _MODE in config else []
    served = [_MODES[mode] for mode in modes if mode in _MODES]
    if len(modes) != 1 or not served:
        names = ", ".join(modes) or "none"
        raise CheckpointError(f"{path}: one of lasttoken, mean and cls pooling is served, not {names}")
    return served[0]


def _modules(modules: list[Any], path: str) -> tuple[str | None, bool]:
    """Return the folder of the pooling module, None if modules.json lists none; and if it normalizes."""
    folder, normalize = None, False
    for module in modules:
        kind = str(module.get("type", "")) if isinstance(module, dict) else ""
        name = kind.rpartition(".")[2]
        if name not in _KNOWN:
            raise CheckpointError(
                f"{path}: module {kind or module!r} is not served, only {', '.join(_KNOWN)}"
            )
        if name == "Pooling":
            folder = str(module.get("path", ""))
        normalize |= name == "Normalize"
    if folder is not None and Path(folder).name != folder:
        raise CheckpointError(f"{path}: the pooling module must lie in a folder beside it, got {folder!r}")
    return folder, normalize


def _parse(data: bytes, kind: type, path: str) -> Any:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    if not isinstance(value, kind):
        raise CheckpointError(f"{path} must hold a JSON {'object' if kind is dict else 'array'}")
    return value
