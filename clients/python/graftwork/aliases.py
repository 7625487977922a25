"""Aliases: names that move between an adapter's versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from graftwork.models import Alias, AliasChange
from graftwork.pages import pages
from graftwork.transport import Transport


class Aliases:
    """`client.aliases`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, adapter: str, **filters: Any) -> Iterator[Alias]:
        """Lists an adapter's aliases by name. Filters: `search`, `version`, `page_size`."""
        return pages(self._transport, Alias, f"/adapters/{adapter}/aliases", **filters)

    def get(self, adapter: str, name: str) -> Alias:
        """Returns one alias. Raises NotFoundError."""
        return self._transport.read(Alias, self._path(adapter, name))

    def set(self, adapter: str, name: str, *, version: int, etag: str | None = None) -> Alias:
        """Points the alias at a ready version, and creates it if needed; in force within a second."""
        return self._transport.change(
            Alias, "PUT", self._path(adapter, name), {"version": version}, etag=etag
        )

    def split(self, adapter: str, name: str, arms: Mapping[int, int], *, etag: str | None = None) -> Alias:
        """Splits the alias: percent by version, adding up to 100. The first stays when the split ends."""
        body = {"arms": [{"version": version, "percent": percent} for version, percent in arms.items()]}
        return self._transport.change(Alias, "PUT", self._path(adapter, name), body, etag=etag)

    def delete(self, adapter: str, name: str, *, etag: str | None = None) -> None:
        """Removes the alias; requests for it get 404."""
        self._transport.delete(self._path(adapter, name), etag=etag)

    def history(self, adapter: str, name: str) -> Iterator[AliasChange]:
        """Lists the alias's changes, newest first."""
        return pages(self._transport, AliasChange, f"{self._path(adapter, name)}/history")

    def rollback(self, adapter: str, name: str) -> Alias:
        """Reverts the newest change."""
        return self._transport.create(Alias, f"{self._path(adapter, name)}/rollback", {})

    @staticmethod
    def _path(adapter: str, name: str) -> str:
        return f"/adapters/{adapter}/aliases/{name}"
