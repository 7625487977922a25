"""API keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from graftwork.models import Key, NewKey
from graftwork.pages import pages
from graftwork.transport import Transport


class Keys:
    """`client.keys`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, **filters: Any) -> Iterator[Key]:
        """Lists keys, newest first, with revoked ones. Filters: `live`, `search`, `project`, `page_size`."""
        return pages(self._transport, Key, "/keys", **filters)

    def get(self, public_id: str) -> Key:
        """Returns one key. Raises NotFoundError."""
        return self._transport.read(Key, f"/keys/{public_id}")

    def create(
        self,
        name: str,
        *,
        scopes: Sequence[str] = ("inference",),
        expires_at: datetime | None = None,
        **restrictions: Sequence[str] | None,
    ) -> NewKey:
        """Creates a key; only this answer contains its text, as `key`.

        Args:
            restrictions: some of `allowed_models`, `allowed_endpoints`, `allowed_networks`.
        """
        body = {"name": name, "scopes": list(scopes), "expires_at": _iso(expires_at), **restrictions}
        return self._transport.create(NewKey, "/keys", body)

    def update(self, public_id: str, *, etag: str | None = None, **changes: Any) -> Key:
        """Changes `expires_at` and restrictions; fields that are left out stay."""
        return self._transport.change(Key, "PATCH", f"/keys/{public_id}", changes, etag=etag)

    def rotate(self, public_id: str, *, old_secret_until: datetime | None = None) -> NewKey:
        """Gives the key a new secret; the old one is accepted until `old_secret_until`."""
        body = {"old_secret_until": _iso(old_secret_until)}
        return self._transport.create(NewKey, f"/keys/{public_id}/rotate", body)

    def revoke(self, public_id: str, *, etag: str | None = None) -> None:
        """Revokes the key; in force everywhere within a second."""
        self._transport.delete(f"/keys/{public_id}", etag=etag)


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
