"""The pooling of a checkpoint's or an adapter's embeddings."""

from __future__ import annotations

from pathlib import Path

from contracts.adapters import pooling
from worker_engine.errors import CheckpointError
from worker_engine.protocol import PoolingParams


def read_pooling(folder: Path) -> PoolingParams:
    """Return a checkpoint's pooling; see `parse_pooling`. Raises CheckpointError."""

    def read(name: str) -> bytes | None:
        path = folder / name
        try:
            return path.read_bytes() if path.is_file() else None
        except OSError as error:
            raise CheckpointError(f"cannot read {path}: {error}") from error

    return parse_pooling(read, where=f"{folder}/") or PoolingParams()


def parse_pooling(read: pooling.Read, *, where: str = "") -> PoolingParams | None:
    """Return the pooling that the files say; None if they say nothing.

    Raises:
        CheckpointError: naming a file that is malformed, or a module or mode that is not supported.
    """
    try:
        stated = pooling.parse_pooling(read, where=where)
    except pooling.PoolingError as error:
        raise CheckpointError(str(error)) from error
    return None if stated is None else PoolingParams(stated.mode, stated.normalize)
