"""The life cycle of an adapter inference component, whose files go to every copy of its base by LMI's API."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sagemaker_local.copies.errors import CopyError
from sagemaker_local.copies.fleet import Fleet
from sagemaker_local.resources.records import ComponentRecord
from sagemaker_local.resources.store import Region


@dataclass(slots=True)
class AdapterComponent:
    """An adapter component; `fleet` is its base's."""

    region: Region
    record: ComponentRecord
    fleet: Fleet
    _files: Path | None = None
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def create(self) -> None:
        """Creating -> InService in every copy, or Failed with the reason and in none."""
        async with self._turn:
            await self.region.clock.sleep(self.region.config.durations.component)
            reason = await self._load(self.record.spec)
            self.region.touch(self.record, "Failed" if reason else "InService", reason)

    async def replace(self, spec: dict[str, Any]) -> None:
        """Updating -> InService with the new files, or with the old ones and the reason."""
        async with self._turn:
            await self.region.clock.sleep(self.region.config.durations.component)
            reason = await self._load(spec)
            if not reason:
                self.record.spec = spec
            served = self._files is not None
            self.region.touch(self.record, "InService" if served else "Failed", reason)

    async def close(self, *, drain: bool) -> None:
        """Unload the adapter. Running requests keep it."""
        if drain:
            await self.fleet.drop_adapter(self.record.name)
        if self._files is not None:
            await asyncio.to_thread(shutil.rmtree, self._files, True)

    async def _load(self, spec: dict[str, Any]) -> str:
        """Load the adapter; return "" or the reason why it is not loaded."""
        try:
            files = await self.fleet.host.artifacts.fetch(spec["Container"]["ArtifactUrl"])
            await self.fleet.put_adapter(self.record.name, files)
        except CopyError as error:
            return str(error)
        old, self._files = self._files, files
        if old is not None:
            await asyncio.to_thread(shutil.rmtree, old, True)
        return ""
