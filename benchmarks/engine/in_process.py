"""The engine without its server, as the worker configures it."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from benchmarks.engine.adapters import ref_of
from worker_engine.adapters.adapter import Adapter
from worker_engine.config import EngineConfig
from worker_engine.service import Service


class InProcess:
    """One engine, and adapters for it. Its thread and its HTTP server are not started."""

    def __init__(self, model: Path, *, speculation: str = "off", weights_cache: str = "auto") -> None:
        """`model` holds the checkpoint; `weights_cache` is the folder of packed weights."""
        self._cache = tempfile.TemporaryDirectory(prefix="graftwork-bench-")
        config = EngineConfig(
            model,
            "base",
            device="cpu",
            adapter_cache_dir=Path(self._cache.name),
            speculation=speculation,
            weights_cache=weights_cache,
        )
        service = Service(config)
        self.engine, self.tokenizer, self._adapters = service.engine, service.tokenizer, service.adapters

    def load(self, folder: Path) -> Adapter:
        """The adapter in `folder`."""
        return asyncio.run(self._load(folder))

    async def _load(self, folder: Path) -> Adapter:
        async with self._adapters.acquire(ref_of(folder, rank=1024)) as adapter:
            return adapter
