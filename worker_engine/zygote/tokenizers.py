"""Tokenizers read before there is a worker for them: reading one takes longer than mapping weights."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from worker_engine.text.tokenizer import ChatTokenizer

FILES: Final = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
Stamp = tuple[tuple[int, int] | None, ...]


class Tokenizers:
    """By checkpoint folder, as long as its files are what they were."""

    def __init__(self, folders: Iterable[Path]) -> None:
        """Raises CheckpointError when one cannot be read."""
        self._held = {folder.resolve(): (_stamp(folder), ChatTokenizer(folder)) for folder in folders}

    def get(self, folder: Path) -> ChatTokenizer | None:
        stamp, tokenizer = self._held.get(folder.resolve(), (None, None))
        return tokenizer if stamp == _stamp(folder) else None


def _stamp(folder: Path) -> Stamp:
    """Sizes and times of change."""
    stats = [path.stat() if (path := folder / name).is_file() else None for name in FILES]
    return tuple(None if stat is None else (stat.st_size, stat.st_mtime_ns) for stat in stats)
