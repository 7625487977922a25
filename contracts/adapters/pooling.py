"""The pooling of embeddings, as the sentence-transformers files of a checkpoint or an adapter say."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple

from contracts.errors import ContractError

Read = Callable[[str], bytes | None]
"""Returns the content of the file with this relative path; None if there is none."""

_MODULES: Final = "modules.json"
_FOLDER: Final = "1_Pooling"
_CONFIG: Final = "config.json"
_MODE: Final = "pooling_mode"


class Pooling(enum.StrEnum):
    """How the prompt's last hidden states form its embedding, in sentence-transformers' terms."""

    LAST = "lasttoken"
    MEAN = "mean"
    FIRST = "cls"


class StatedPooling(NamedTuple):
    """Pooling that files state; `normalize` scales the embedding to length 1."""

    mode: Pooling = Pooling.LAST
    normalize: bool = True


class PoolingError(ContractError):
    """Pooling files that are malformed, or that name a module or mode that the bundled worker lacks."""


_MODES: Final = {
    **{str(pooling): pooling for pooling in Pooling},
    "pooling_mode_lasttoken": Pooling.LAST,
    "pooling_mode_mean_tokens": Pooling.MEAN,
    "pooling_mode_cls_token": Pooling.FIRST,
}
_KNOWN: Final = ("Transformer", "Pooling", "Normalize")
"""Supported modules. Others, such as Dense, have weights that are not supported."""


def parse_pooling(read: Read, *, where: str = "") -> StatedPooling | None:
    """Return the pooling that the files say; None if they say nothing.

    Without `modules.json` embeddings are scaled to length 1, as OpenAI's are. With it they are if it lists
    `Normalize`, as in sentence-transformers and vLLM. Where no file names a mode, it is the last token: the
    only one that attends to all others.

    Args:
        where: prefix of the files' names in errors.

    Raises:
        PoolingError: naming a file that is malformed, or a module or mode that is not supported.
    """
    path, normalize, data = f"{_FOLDER}/{_CONFIG}", True, read(_MODULES)
    if data is not None:
        folder, normalize = _modules(_parse(data, list, where + _MODULES), where + _MODULES)
        if folder is None:
            return StatedPooling(normalize=normalize)
        path = f"{folder}/{_CONFIG}".lstrip("/")
    if (config := read(path)) is None:
        return None if data is None else StatedPooling(normalize=normalize)
    return StatedPooling(_mode(_parse(config, dict, where + path), where + path), normalize)


def _mode(config: Mapping[str, Any], path: str) -> Pooling:
    modes = [name for name, on in config.items() if name.startswith(f"{_MODE}_") and on is True]
    modes += [str(config[_MODE])] if _MODE in config else []
    served = [_MODES[mode] for mode in modes if mode in _MODES]
    if len(modes) != 1 or not served:
        names = ", ".join(modes) or "none"
        raise PoolingError(f"{path}: one of lasttoken, mean and cls pooling is served, not {names}")
    return served[0]


def _modules(modules: list[Any], path: str) -> tuple[str | None, bool]:
    """Return the folder of the pooling module, None if modules.json lists none; and if it normalizes."""
    folder, normalize = None, False
    for module in modules:
        kind = str(module.get("type", "")) if isinstance(module, dict) else ""
        name = kind.rpartition(".")[2]
        if name not in _KNOWN:
            raise PoolingError(f"{path}: module {kind or module!r} is not served, only {', '.join(_KNOWN)}")
        if name == "Pooling":
            folder = str(module.get("path", ""))
        normalize |= name == "Normalize"
    if folder is not None and PurePosixPath(folder).name != folder:
        raise PoolingError(f"{path}: the pooling module must lie in a folder beside it, got {folder!r}")
    return folder, normalize


def _parse(data: bytes, kind: type, path: str) -> Any:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise PoolingError(f"cannot read {path}: {error}") from error
    if not isinstance(value, kind):
        raise PoolingError(f"{path} must hold a JSON {'object' if kind is dict else 'array'}")
    return value
