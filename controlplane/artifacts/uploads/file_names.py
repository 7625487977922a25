"""Checks names of uploaded files: safe paths, equal names, archives and pickles."""

from __future__ import annotations

import unicodedata
from typing import Final

from contracts.adapters.config import MAX_ADAPTER_BYTES, MAX_CONFIG_BYTES
from contracts.adapters.file_limit import LARGEST_ADAPTER_BYTES
from contracts.adapters.foreign_weights import refusal_of_others
from contracts.adapters.reference import ADAPTER_FILES, POOLING_FILES

MAX_POOLING_BYTES: Final = 64 << 10
FILE_LIMITS: Final = {
    ADAPTER_FILES[0]: MAX_CONFIG_BYTES,
    ADAPTER_FILES[1]: LARGEST_ADAPTER_BYTES,
    **dict.fromkeys(POOLING_FILES, MAX_POOLING_BYTES),
}
"""Size limit of each adapter file in bytes, for any base; validation has the base's own."""
MODEL_CARD: Final = "README.md"
"""The adapter's model card: stored with the version, but not served and not part of its digest."""
EXTRA_FILES: Final = (MODEL_CARD, *POOLING_FILES)
"""Files that an adapter may have beside its own two."""
MAX_CARD_BYTES: Final = 100_000
"""Bytes of a card that are stored; the rest is cut off."""
MAX_CARD_UPLOAD: Final = 1 << 20
MAX_ARCHIVE_BYTES: Final = MAX_ADAPTER_BYTES + MAX_CONFIG_BYTES + (64 << 20)
"""Limit for an archive and for its unpacked content: an adapter and the other files that PEFT saves. Larger
adapters are sent as files, since an archive's size does not bound what it unpacks to."""
_ARCHIVES: Final = (".zip", ".tar.gz", ".tgz")
_PICKLES: Final = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
_INVISIBLE: Final = ("Cc", "Cf", "Cs", "Co", "Cn")
"""Unicode's categories of control, format, surrogate, private and unassigned characters."""


def is_archive(name: str) -> bool:
    """Return True if the name is that of an archive."""
    return name.lower().endswith(_ARCHIVES)


def accepted_bytes(name: str) -> int | None:
    """Return the size limit for a file of this name; None if such files are not accepted."""
    if name == MODEL_CARD:
        return MAX_CARD_UPLOAD
    return MAX_ARCHIVE_BYTES if is_archive(name) else FILE_LIMITS.get(name)


def is_pickle(name: str) -> bool:
    """Return True for file types from which torch.load can run code."""
    return name.lower().endswith(_PICKLES)


def upload_refusal(name: str) -> str:
    """Return why a file of this name is not accepted alone, and what to send."""
    if refusal := refusal_of_others([name]):
        return refusal
    if is_pickle(name):
        return (
            f"{name[:200]} is a trainer's state and not part of an adapter: leave it out, and send"
            f" {' and '.join(ADAPTER_FILES)}"
        )
    return f"send {', '.join(ADAPTER_FILES)}, or a .zip or .tar.gz of them"


def one_name(name: str) -> str:
    """Return the normalized name: equal for names that some file systems treat as the same."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    return unicodedata.normalize("NFKC", "/".join(parts)).casefold()


def name_fault(name: str) -> str | None:
    """Return the fault of a file's path as text; None for a plain relative path."""
    if not name or len(name.encode(errors="replace")) > 1000:
        return "is empty or too long"
    if any(unicodedata.category(character) in _INVISIBLE for character in name):
        return "holds control or invisible characters"
    if "\\" in name or name.startswith("/") or name[1:2] == ":":
        return "is absolute or holds a backslash"
    if ".." in name.split("/"):
        return "leads out of its folder by .."
    return None
