"""Names of files that come from outside: which are harmless, which are one, and which are pickles."""

from __future__ import annotations

import unicodedata
from typing import Final

from contracts.adapters.config import MAX_ADAPTER_BYTES, MAX_CONFIG_BYTES
from contracts.adapters.foreign_weights import refusal_of_others
from contracts.adapters.reference import ADAPTER_FILES

FILE_LIMITS: Final = {ADAPTER_FILES[0]: MAX_CONFIG_BYTES, ADAPTER_FILES[1]: MAX_ADAPTER_BYTES}
"""Bytes accepted of each file."""
MODEL_CARD: Final = "README.md"
"""What the adapter's makers say of it: kept with the version, no part of what is served or of its digest."""
MAX_CARD_BYTES: Final = 100_000
"""Kept of a card; the rest is left out."""
MAX_CARD_UPLOAD: Final = 1 << 20
MAX_ARCHIVE_BYTES: Final = MAX_ADAPTER_BYTES + MAX_CONFIG_BYTES + (64 << 20)
"""Of an archive, and of all that it holds, unpacked: an adapter and what PEFT saves beside one."""
_ARCHIVES: Final = (".zip", ".tar.gz", ".tgz")
_PICKLES: Final = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
_INVISIBLE: Final = ("Cc", "Cf", "Cs", "Co", "Cn")
"""Unicode's categories of control, format, surrogate, private and unassigned characters."""


def is_archive(name: str) -> bool:
    """Whether a file of this name is taken as an archive."""
    return name.lower().endswith(_ARCHIVES)


def accepted_bytes(name: str) -> int | None:
    """How large a file of this name may be; None where none of the name is taken."""
    if name == MODEL_CARD:
        return MAX_CARD_UPLOAD
    return MAX_ARCHIVE_BYTES if is_archive(name) else FILE_LIMITS.get(name)


def is_pickle(name: str) -> bool:
    """Whether a file of this name is one that torch.load would run code from."""
    return name.lower().endswith(_PICKLES)


def upload_refusal(name: str) -> str:
    """Return why a file of this name is not taken by itself, and what to send."""
    if refusal := refusal_of_others([name]):
        return refusal
    if is_pickle(name):
        return (
            f"{name[:200]} is a trainer's state and no part of an adapter: leave it out, and send"
            f" {' and '.join(ADAPTER_FILES)}"
        )
    return f"send {', '.join(ADAPTER_FILES)}, or a .zip or .tar.gz of them"


def one_name(name: str) -> str:
    """The name by which two names count as one: file systems fold case and Unicode's forms."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    return unicodedata.normalize("NFKC", "/".join(parts)).casefold()


def name_fault(name: str) -> str | None:
    """What is wrong with a file's path; None for a plain relative one."""
    if not name or len(name.encode(errors="replace")) > 1000:
        return "is empty or too long"
    if any(unicodedata.category(character) in _INVISIBLE for character in name):
        return "holds control or invisible characters"
    if "\\" in name or name.startswith("/") or name[1:2] == ":":
        return "is absolute or holds a backslash"
    if ".." in name.split("/"):
        return "leads out of its folder by .."
    return None
