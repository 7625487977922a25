"""The copies of one component: their number, their adapters, and the choice of a copy for a request."""

from __future__ import annotations

import asyncio
import itertools
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from sagemaker_local.copies.artifacts import Artifacts, Model
from sagemaker_local.copies.command import ContainerSpec
from sagemaker_local.copies.copy import Copy, launch
from sagemaker_local.copies.errors import AdapterRefused, CopyError, StartError
from sagemaker_local.state import Target

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Host:
    """The host's resources that all fleets share.

    Attributes:
        client: HTTP client for containers.
        environment: variables for every container, in addition to its own.
        fault: returns the reason why a component's next copy must not start, or "".
    """

    folder: Path
    artifacts: Artifacts
    client: aiohttp.ClientSession
    environment: Mapping[str, str]
    images: Mapping[str, tuple[str, ...]]
    fault: Callable[[str], str]


@dataclass(slots=True)
class Fleet:
    """The copies of the component `name`.

    Attributes:
        lost: called with a copy whose process has ended by itself.
        copies: in the order of their start; serving ones are `ready`.
        adapters: files by adapter name in the containers.
    """

    host: Host
    name: str
    lost: Callable[[Copy], None]
    copies: list[Copy] = field(default_factory=list)
    adapters: dict[str, Path] = field(default_factory=dict)
    _watches: set[asyncio.Task[None]] = field(default_factory=set)
    _adapting: asyncio.Lock = field(default_factory=asyncio.Lock)
    _fetching: asyncio.Lock = field(default_factory=asyncio.Lock)
    _old_models: list[Model] = field(default_factory=list)
    _models: dict[str, Model] = field(default_factory=dict)

    @property
    def serving(self) -> list[Copy]:
        return [copy for copy in self.copies if copy.ready]

    def target(self, adapter: str = "") -> Target | None:
        """Return the copy with the fewest outstanding requests; None if none serves."""
        if not self.serving:
            return None
        copy = min(self.serving, key=lambda item: item.load.outstanding)
        return Target.for_url(copy.url, copy.load, adapter)

    async def start(self, spec: ContainerSpec, seconds: float) -> Copy:
        """Start a copy, and wait until it serves.

        Raises:
            CopyError: it does not start; its process and folder are removed.
        """
        if reason := self.host.fault(self.name):
            raise StartError(reason)
        model = await self._model(spec)
        copy = await launch(
            spec,
            self.host.folder / f"{self.name}.{next(_numbers)}",
            model,
            name=self.name,
            environment=self.host.environment,
            images=self.host.images,
        )
        try:
            await copy.until_ready(self.host.client, seconds)
            async with self._adapting:
                for name, files in self.adapters.items():
                    try:
                        await copy.put_adapter(self.host.client, name, files)
                    except AdapterRefused as error:
                        # An adapter that this copy refuses must not cost the base its copy.
                        log.warning(
                            "%s: adapter %s is not in copy %d: %s", self.name, name, copy.number, error
                        )
                copy.ready = True
                self.copies.append(copy)
        except BaseException:
            # Shielded, so that the process ends even if the component is deleted meanwhile.
            await asyncio.shield(copy.stop(drain=False))
            raise
        watch = asyncio.create_task(self._watch(copy))
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)
        return copy

    async def stop(self, copies: list[Copy], *, drain: bool = True) -> None:
        """Take copies out of service at once, and end them when they are idle."""
        for copy in copies:
            copy.ready = False
            if copy in self.copies:
                self.copies.remove(copy)
        await asyncio.gather(*(copy.stop(drain=drain) for copy in copies))

    async def put_adapter(self, name: str, files: Path) -> None:
        """Load an adapter in every copy, and in copies that start later.

        Raises:
            AdapterRefused: a copy refused it; the adapter is then removed, or the old one restored.
        """
        async with self._adapting:
            old = self.adapters.get(name)
            self.adapters[name] = files
            try:
                for copy in list(self.copies):
                    await copy.put_adapter(self.host.client, name, files)
            except CopyError:
                if old is None:
                    del self.adapters[name]
                else:
                    self.adapters[name] = old
                await self._restore(name)
                raise

    async def drop_adapter(self, name: str) -> None:
        async with self._adapting:
            self.adapters.pop(name, None)
            await self._restore(name)

    def read_anew(self) -> None:
        """Have new copies fetch the artifact again."""
        self._old_models += self._models.values()
        self._models = {}

    async def close(self) -> None:
        """End all copies, idle or not, and remove their fetched files."""
        await self.stop(list(self.copies), drain=False)
        self.read_anew()
        for model in self._old_models:
            for folder in model.fetched:
                await asyncio.to_thread(shutil.rmtree, folder, True)

    async def _restore(self, name: str) -> None:
        files = self.adapters.get(name)
        for copy in list(self.copies):
            if files is None:
                await copy.drop_adapter(self.host.client, name)
            else:
                await copy.put_adapter(self.host.client, name, files)

    async def _model(self, spec: ContainerSpec) -> Model:
        """Fetch a specification's model once for all copies, even if they start together."""
        async with self._fetching:
            key = repr(spec)
            if key not in self._models:
                self._models[key] = await self.host.artifacts.model(spec)
            return self._models[key]

    async def _watch(self, copy: Copy) -> None:
        status = await copy.process.wait()
        if copy in self.copies:
            log.warning("%s: copy %d ended by itself with status %s", self.name, copy.number, status)
            self.copies.remove(copy)
            copy.ready = False
            self.lost(copy)


_numbers = itertools.count(1)
"""Numbers of folders: two copies of a component never share one."""
