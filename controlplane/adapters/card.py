"""A version's model card: a README.md that comes with its files, as text in the version's row.

It is no file of the store: those lie under the digest of what is served, which two versions with unlike
cards may share.
"""

from __future__ import annotations

from controlplane.artifacts.store import ByteStream
from controlplane.artifacts.store.base import ArtifactStore
from controlplane.artifacts.uploads.file_names import FILE_LIMITS, MAX_CARD_BYTES, MODEL_CARD


def file_put(store: ArtifactStore, staging: str, name: str, stream: ByteStream) -> None:
    """Stages one file of an adapter, in place of an earlier one; of a card as much as is kept.

    Raises:
        InvalidInputError: another file is larger than is accepted.
    """
    is_card = name == MODEL_CARD
    content = _Beginning(stream, MAX_CARD_BYTES) if is_card else stream
    # An archive's first checkpoint may have come before the adapter.
    store.remove_file(f"{staging}/{name}")
    store.put(f"{staging}/{name}", content, limit=MAX_CARD_BYTES if is_card else FILE_LIMITS[name])


def card_take(store: ArtifactStore, staging: str) -> str | None:
    """The staged card's text, None where there is none. It stays until `card_drop`."""
    if store.size(f"{staging}/{MODEL_CARD}") is None:
        return None
    with store.open(f"{staging}/{MODEL_CARD}") as stream:
        data = stream.read(MAX_CARD_BYTES)
    # PostgreSQL's text has no NUL; what is no UTF-8 shows where it was.
    return data.decode("utf-8", "replace").replace("\0", "").strip()


def card_drop(store: ArtifactStore, staging: str) -> None:
    """Removes the staged card, which is in the row: what stays is copied under the content's digest."""
    store.remove_file(f"{staging}/{MODEL_CARD}")


class _Beginning:
    """The first bytes of a stream."""

    def __init__(self, stream: ByteStream, most: int) -> None:
        self._stream, self._left = stream, most

    def read(self, size: int = -1, /) -> bytes:
        data = self._stream.read(self._left if size < 0 else min(size, self._left)) if self._left else b""
        self._left -= len(data)
        return data
