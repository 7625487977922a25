"""Adapters and their versions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from graftwork.errors import (
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
    RefusedError,
)
from graftwork.folder import AdapterFolder, Progress
from graftwork.models import Adapter, AdapterCheck, BaseModel, Version
from graftwork.pages import pages
from graftwork.transport import Transport
from graftwork.uploads import Uploads

_REFUSALS: Final = (InvalidRequestError, PermissionDeniedError, NotFoundError, ConflictError)
"""Refusals that would repeat for the same registration, so the uploads are deleted."""


class Adapters:
    """`client.adapters`."""

    def __init__(self, transport: Transport, uploads: Uploads) -> None:
        self._transport, self._uploads = transport, uploads

    def list(self, **filters: Any) -> Iterator[Adapter]:
        """Lists adapters by name. Filters: `search`, `base_model`, `status`, `page_size`."""
        return pages(self._transport, Adapter, "/adapters", **filters)

    def get(self, name: str) -> Adapter:
        """Returns one adapter. Raises NotFoundError."""
        return self._transport.read(Adapter, f"/adapters/{name}")

    def delete(self, name: str, *, etag: str | None = None) -> None:
        """Deletes an adapter with its versions and aliases; with `etag` only in that state."""
        self._transport.delete(f"/adapters/{name}", etag=etag)

    def versions(self, name: str, **filters: Any) -> Iterator[Version]:
        """Lists an adapter's versions, newest first. Filters: `status`, `page_size`."""
        return pages(self._transport, Version, f"/adapters/{name}/versions", **filters)

    def version(self, name: str, number: int) -> Version:
        """Returns one version. Raises NotFoundError."""
        return self._transport.read(Version, f"/adapters/{name}/versions/{number}")

    def pin(self, name: str, number: int | None) -> Adapter:
        """Sets the default version, which serves the bare name; None follows the newest ready one."""
        return self._transport.change(Adapter, "PUT", f"/adapters/{name}/pin", {"version": number})

    def rollback(self, name: str) -> Adapter:
        """Restores the previous default version."""
        return self._transport.create(Adapter, f"/adapters/{name}/rollback")

    def base_models(self, **filters: Any) -> Iterator[BaseModel]:
        """Lists the base models that adapters can be registered for."""
        return pages(self._transport, BaseModel, "/base-models", **filters)

    def push(
        self,
        folder: str | Path,
        *,
        name: str,
        base_model: str,
        dataset: str = "",
        run_url: str = "",
        make_default: bool | None = None,
        progress: Progress | None = None,
        on_check: Callable[[AdapterCheck], None] = lambda check: None,
    ) -> Version:
        """Uploads a PEFT folder as an adapter, or as the next version of one.

        The server checks name, base model, quota and lineage before the upload, and again at the end. A
        refusal removes the uploads. An interrupted upload resumes when the same client calls again, or any
        client with the same `unfinished` file.

        Args:
            dataset: the training data, as free text.
            run_url: the training run's page.
            make_default: True makes the new version the default once it is ready, False keeps the default.
                None keeps it only if the bare name was called in the last 7 days.
            progress: called with (bytes sent, bytes in all).
            on_check: called before the upload with the default version; not called for a server of a release
                without checks.

        Returns:
            The pending version; pass it to `wait`.

        Raises:
            ConfigurationError: the folder lacks a file, or holds a pickle.
            ApiError: the server refuses the registration, or a file.
        """
        found = AdapterFolder(Path(folder))
        body = {
            "name": name,
            "base_model": base_model,
            "make_default": make_default,
            **_lineage(dataset, run_url),
        }
        try:
            if check := self._check({**body, "size_bytes": found.size}):
                on_check(check)
            uploads = self._send(found, progress)
            version = self._transport.create(Version, "/adapters", {**body, "uploads": uploads})
        except _REFUSALS:
            for file in found.files:
                self._uploads.discard(file)
            raise
        for file in found.files:
            self._uploads.forget(file)
        return version

    def _check(self, body: dict[str, Any]) -> AdapterCheck | None:
        """Checks a registration before its upload; None from a server of a release without checks.

        Raises:
            ApiError: the server refuses the registration.
        """
        try:
            return self._transport.create(AdapterCheck, "/adapter-checks", body)
        except NotFoundError:
            # A server with checks answers 404 too for an unknown base model; this read then says so.
            self._transport.read(BaseModel, f"/base-models/{quote(body['base_model'], safe='')}")
            return None

    def _send(self, folder: AdapterFolder, progress: Progress | None) -> tuple[str, ...]:
        """Uploads the folder's files and returns their uploads' ids."""
        done, ids = 0, []
        for file in folder.files:
            ids.append(self._uploads.send(file, progress=_offset_progress(progress, done, folder.size)))
            done += file.stat().st_size
        return tuple(ids)

    def register(
        self,
        uri: str,
        *,
        name: str,
        base_model: str,
        dataset: str = "",
        run_url: str = "",
        make_default: bool | None = None,
    ) -> Version:
        """Registers an adapter at a URI: `s3://`, `hf://` or `file://`, as the server permits."""
        body = {
            "name": name,
            "base_model": base_model,
            "uri": uri,
            "make_default": make_default,
            **_lineage(dataset, run_url),
        }
        return self._transport.create(Version, "/adapters", body)

    def wait(
        self,
        name: str,
        number: int,
        *,
        timeout: float = 1800.0,
        on_change: Callable[[Version], None] = lambda version: None,
    ) -> Version:
        """Waits until the version is ready, and returns it; `on_change` gets each new state of its steps.

        Raises:
            RefusedError: validation refused it; the text says why.
            TimeoutError: it was not settled within `timeout` seconds.
        """
        deadline, reported = time.monotonic() + timeout, None
        while True:
            version = self.version(name, number)
            if version != reported:
                on_change(version)
                reported = version
            if version.status == "refused":
                raise RefusedError(version.reason)
            if version.settled:
                return version
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"version {number} of {name} is still {version.status} after {timeout:g} s"
                )
            time.sleep(0.3)


def _lineage(dataset: str, run_url: str) -> dict[str, str]:
    """Returns the non-empty lineage fields: an older server refuses fields that it does not know."""
    return {key: text for key, text in (("dataset", dataset), ("run_url", run_url)) if text}


def _offset_progress(progress: Progress | None, before: int, total: int) -> Callable[[int], None]:
    """Returns a callback for one file that adds the `before` bytes of earlier files."""
    return lambda sent: None if progress is None else progress(before + sent, total)
