"""A version's model card: a README.md that comes with its files, as text in the version's row.

The card is not kept in the store: files there lie under the digest of the weights and configuration, which
two versions with different cards may share.
"""

from __future__ import annotations

from controlplane.artifacts.store import ByteStream
from controlplane.artifacts.store.base import ArtifactStore
from controlplane.artifacts.uploads.file_names import FILE_LIMITS, MAX_CARD_BYTES, MODEL_CARD


def file_put(store: ArtifactStore, staging: str, name: str, stream: ByteStream) -> None:
    """Stage one file of an adapter, replacing an earlier one; a model card is cut to MAX_CARD_BYTES.

    Raises:
        InvalidInputError: a file other than the card exceeds its size limit.
    """
    is_card = name == MODEL_CARD
    content = _Beginning(stream, MAX_CARD_BYTES) if is_card else stream
    # An archive's first checkpoint may have come before the adapter.
    store.remove_file(f"{staging}/{name}")
    store.put(f"{staging}/{name}", content, limit=MAX_CARD_BYTES if is_card else FILE_LIMITS[name])


def card_take(store: ArtifactStore, staging: str) -> str | None:
    """Return the staged card's text; None without a card. The file stays until `card_drop`."""
    if store.size(f"{staging}/{MODEL_CARD}") is None:
        return None
    with store.open(f"{staging}/{MODEL_CARD}") as stream:
        data = stream.read(MAX_CARD_BYTES)
    # PostgreSQL's text has no NUL; invalid UTF-8 becomes U+FFFD.
    return data.decode("utf-8", "replace").replace("\0", "").strip()


def card_drop(store: ArtifactStore, staging: str) -> None:
    """Remove the staged card, which is now in the row; the other files are copied by digest."""
    store.remove_file(f"{staging}/{MODEL_CARD}")


class _Beginning:
    """The first bytes of a stream."""

    def __init__(self, stream: ByteStream, most: int) -> None:
        self._stream, self._left = stream, most

    def read(self, size: int = -1, /) -> bytes:
        data = self._stream.read(self._left if size < 0 else min(size, self._left)) if self._left else b""
        self._left -= len(data)
        return data
