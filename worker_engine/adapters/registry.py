"""Registered adapter names: the source of each, and its content at registration."""

from __future__ import annotations

import asyncio
import re
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from contracts.adapters.foreign_weights import refusal_of_others
from contracts.adapters.reference import ADAPTER_FILES, POOLING_FILES, AdapterRef
from worker_engine.adapters.loader import AdapterLoader
from worker_engine.adapters.pool import AdapterPool
from worker_engine.errors import (
    AdapterFilesNotFound,
    AdapterNotFound,
    ConfigError,
    InvalidRequest,
    RequestError,
)

MAX_REGISTERED: Final = 10_000
NAME_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,255}"
_NAME: Final = re.compile(NAME_PATTERN)


@dataclass(frozen=True, slots=True)
class RegisteredAdapter:
    """A name, and the content that it refers to until it is registered again.

    Attributes:
        src: as the caller wrote it.
        ref: its digest is that of the files at `src` when it was registered.
    """

    name: str
    src: str
    ref: AdapterRef
    pin: bool


class AdapterRegistry:
    """Names of adapters. Runs on the event loop.

    A name refers to content, not to a location. Changed files at `src` have no effect until the name is
    registered or updated again. It then gets the new content's identity, so that neither old weights nor old
    cached prefixes are served under it.
    """

    def __init__(self, loader: AdapterLoader, pool: AdapterPool, *, root: Path | None, base: str) -> None:
        """
        Args:
            root: the folder that local adapters may come from; None for nowhere.
            base: the base model's name, which no adapter may take.
        """
        self._loader, self._pool, self._base = loader, pool, base
        self._root = None if root is None else root.resolve()
        self._by_name: dict[str, RegisteredAdapter] = {}
        self._busy: set[str] = set()

    def __iter__(self) -> Iterator[RegisteredAdapter]:
        return iter(list(self._by_name.values()))

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str, *, param: str) -> RegisteredAdapter:
        """Return the name's registration. Raises AdapterNotFound."""
        if (found := self._by_name.get(name)) is None:
            raise AdapterNotFound(
                f"{param} {name[:256]!r} is not served here: it is neither {self._base!r} nor a registered "
                "adapter",
                param=param,
            )
        return found

    async def register(
        self, name: str, src: str, *, preload: bool = True, pin: bool = False, replace: bool = False
    ) -> RegisteredAdapter:
        """Takes the content that lies at `src` now under `name`.

        Args:
            preload: load it into memory, and so refuse here what cannot be served.
            pin: keep it there.
            replace: take a name that is registered already; requests that run keep the old content.

        Raises:
            InvalidRequest: the name is taken or malformed, or `src` is no place that adapters may come from.
            AdapterFilesNotFound: `src` lies in the folder for adapters, and no folder is there.
            AdapterRefused, AdapterUnavailable: as `AdapterLoader.load` and `AdapterPool.pin`.
        """
        if _NAME.fullmatch(name) is None or name == self._base:
            raise InvalidRequest(
                f"name must match {NAME_PATTERN} and not be the base model's, got {name[:300]!r}",
                param="name",
            )
        if not replace and name in self._by_name:
            raise InvalidRequest(f"adapter {name!r} is registered already: unregister it first", param="name")
        if name not in self._by_name and len(self._by_name) + len(self._busy) >= MAX_REGISTERED:
            raise InvalidRequest(f"{MAX_REGISTERED} adapters are registered: unregister one", param="name")
        with self._alone(name):
            uri = await asyncio.to_thread(self._locate, src)
            sha256, rank = await asyncio.to_thread(self._loader.identify, uri)
            ref = AdapterRef(name, uri, sha256, rank)
            if pin:
                await self._pool.pin(ref)
            elif preload:
                async with self._pool.acquire(ref):
                    pass
            old = self._by_name.get(name)
            self._by_name[name] = new = RegisteredAdapter(name, src, ref, pin)
            self._release(old)
            return new

    def unregister(self, name: str, *, param: str) -> None:
        """Remove a name; running requests keep the adapter. Raises AdapterNotFound."""
        found = self.get(name, param=param)
        with self._alone(name):
            del self._by_name[name]
            self._release(found)

    async def register_folder(self, folder: Path) -> None:
        """Register each adapter of `folder` under its subfolder's name.

        Raises:
            ConfigError: naming the adapter that cannot be served.
        """
        for path in await asyncio.to_thread(_subfolders, folder):
            try:
                await self.register(path.name, str(path))
            except RequestError as error:
                raise ConfigError(f"adapter {path}: {error}") from error

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        if name in self._busy:
            raise InvalidRequest(f"adapter {name!r} is being registered by another request", param="name")
        self._busy.add(name)
        try:
            yield
        finally:
            self._busy.discard(name)

    def _release(self, old: RegisteredAdapter | None) -> None:
        """Unpin content that no name pins any more."""
        if old is not None and old.pin:
            sha256 = old.ref.sha256
            if not any(item.pin and item.ref.sha256 == sha256 for item in self._by_name.values()):
                self._pool.unpin(sha256)

    def _locate(self, src: str) -> str:
        """Return the URI of a source: s3://..., file:///..., or a path, absolute or relative to the root."""
        try:
            parts = urllib.parse.urlsplit(src)
            if parts.scheme == "s3" and parts.netloc:
                return src
            if parts.scheme == "file" and parts.netloc in ("", "localhost"):
                return self._inside(urllib.parse.unquote(parts.path)).as_uri() + "/"
            if not parts.scheme and src:
                return self._inside(src).as_uri() + "/"
        except (ValueError, OSError, RuntimeError) as error:  # NUL bytes, names too long, loops of links
            raise InvalidRequest(f"src is no place: {error}", param="src") from error
        raise InvalidRequest(f"src must be s3://..., file:///... or a path, got {src[:300]!r}", param="src")

    def _inside(self, path: str) -> Path:
        if self._root is None:
            raise InvalidRequest("src: this worker takes no local adapters (--adapters-dir)", param="src")
        folder = (self._root / path).resolve()
        # Links are followed before the comparison, the files' own too.
        places = [folder, *((folder / name).resolve() for name in (*ADAPTER_FILES, *POOLING_FILES))]
        if not all(place.is_relative_to(self._root) for place in places):
            raise InvalidRequest("src must lie in the folder that --adapters-dir names", param="src")
        # Checked last, so that the answer says nothing about folders outside the root.
        if not folder.is_dir():
            raise AdapterFilesNotFound(
                f"there is no adapter at {path[:300]!r}: put its files there or correct the path", param="src"
            )
        if not all(place.is_file() for place in places[1:3]):
            names = [path.name for path in folder.iterdir()]
            refusal = None if places[2].is_file() else refusal_of_others(names)
            expected = f"src must be a folder with {' and '.join(ADAPTER_FILES)}"
            raise InvalidRequest(refusal or expected, param="src")
        return folder


def _subfolders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.resolve().iterdir() if path.is_dir())
