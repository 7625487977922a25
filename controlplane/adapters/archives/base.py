"""Rules for the content of adapter archives, shared by .zip and .tar.gz."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from contracts.adapters.foreign_weights import refusal_of_others
from contracts.adapters.reference import ADAPTER_FILES, POOLING_FILES
from controlplane.artifacts.store import ByteStream
from controlplane.artifacts.uploads.file_names import EXTRA_FILES, name_fault, one_name
from controlplane.errors import RefusedError

Put = Callable[[str, ByteStream], None]
"""Stores one of ADAPTER_FILES or EXTRA_FILES, replacing an earlier one.

Raises if the stream exceeds that file's limit.
"""

MAX_RATIO: Final = 200
"""Largest compression ratio. Weights hardly compress, except the zeros of a fresh adapter, half of it."""
RATIO_COUNTS_FROM: Final = 16 << 20
"""Unpacked bytes below which any ratio is harmless."""
MAX_ENTRIES: Final = 1000
MOST_EXTRAS: Final = 48
"""Most model cards and pooling files that are buffered until the adapter's folder is known."""
MAX_READ: Final = 2 << 20
"""Longest single read that an archive's own lengths may cause; a longer directory or header is hostile."""

_CHECKPOINT: Final = re.compile(r"checkpoint-[0-9]+")
"""Checkpoint folders of transformers' Trainer."""


class Entries:
    """Checks an archive's entries one by one, and finds the adapter's files and EXTRA_FILES among them.

    A trainer's output holds the adapter and `checkpoint-<step>` folders of earlier steps, which are skipped.
    Such a folder may also be packed alone. Therefore the first checkpoint's files are used until the
    adapter's own files replace them.
    """

    def __init__(self) -> None:
        self._entry_names = set[str]()
        self._found = dict[str, str]()
        self._checkpoints = dict[str, set[str]]()
        self._extras = 0

    def admit(self, name: str, *, kind: str, is_folder: bool = False) -> str | None:
        """Return the entry's name among ADAPTER_FILES and EXTRA_FILES; None for other entries.

        Args:
            kind: `file`, or a description of another kind, which is refused.

        Raises:
            RefusedError: this entry makes the archive unacceptable.
        """
        if kind != "file":
            raise RefusedError(f"{name[:200]!r} in the archive is a {kind}: pack only plain files")
        if fault := name_fault(name):
            raise RefusedError(f"the name {name[:200]!r} in the archive {fault}: pack the adapter's folder")
        if len(self._entry_names) >= MAX_ENTRIES:
            raise RefusedError(
                f"the archive holds more than {MAX_ENTRIES} entries: pack the adapter's folder"
            )
        if (folded := one_name(name)) in self._entry_names and not is_folder:
            raise RefusedError(
                f"{name[:200]!r} is in the archive twice when case and Unicode form are ignored"
            )
        self._entry_names.add(folded)
        if is_folder:
            return None
        return self._adapter_file(name)

    def finish(self) -> None:
        """Raises RefusedError unless both adapter files were found in one folder."""
        self._choose_checkpoint()
        if missing := [file for file in ADAPTER_FILES if file not in self._found]:
            files = [name.rpartition("/")[2] for name in self._entry_names]
            if missing == [ADAPTER_FILES[1]] and (refusal := refusal_of_others(files)):
                raise RefusedError(refusal)
            raise RefusedError(f"the archive holds no {' and no '.join(missing)}: pack the adapter's folder")
        if len(set(self._found.values())) > 1:
            raise RefusedError(f"{' and '.join(ADAPTER_FILES)} lie in different folders of the archive")

    @property
    def folder(self) -> str:
        """The adapter's folder, as by `place_of`; valid after `finish`."""
        return next(iter(self._found.values()))

    def _choose_checkpoint(self) -> None:
        """Take the checkpoint of an archive that holds no other adapter. Raises RefusedError for several."""
        folders = [folder for folder, files in self._checkpoints.items() if files]
        if self._found or not folders:
            return
        if len(folders) > 1:
            listed = ", ".join(folder.rpartition("/")[2] for folder in folders[:5])
            raise RefusedError(
                f"the archive holds {len(folders)} checkpoints ({listed[:200]}) and no final adapter:"
                " choose one checkpoint and pack its folder alone"
            )
        self._found = dict.fromkeys(self._checkpoints[folders[0]], folders[0])

    def _adapter_file(self, name: str) -> str | None:
        folder, file = place_of(name)
        if file not in (*ADAPTER_FILES, *EXTRA_FILES):
            return None
        if any(_CHECKPOINT.fullmatch(part) for part in folder.split("/")):
            return self._checkpoint_file(folder, file)
        if file in EXTRA_FILES:
            return file if self._may_be_own(folder, file) else None
        if file in self._found:
            raise RefusedError(f"the archive holds {file} in two folders: pack a single adapter")
        self._found[file] = folder
        return file

    def _checkpoint_file(self, folder: str, file: str) -> str | None:
        """Return `file` for the first checkpoint until the adapter comes; None for the others."""
        files = self._checkpoints.setdefault(folder, set())
        if file not in EXTRA_FILES:
            files.add(file)
        return None if self._found or folder != next(iter(self._checkpoints)) else file

    def _may_be_own(self, folder: str, file: str) -> bool:
        """Return False for a card that is another's, or comes after too many others.

        Raises:
            RefusedError: a pooling file comes after too many others: without it, embeddings would be wrong.
        """
        if self._found:
            return folder in self._found.values()
        self._extras += 1
        if self._extras > MOST_EXTRAS and file in POOLING_FILES:
            raise RefusedError(
                f"the archive holds more than {MOST_EXTRAS} cards and pooling files before the adapter: pack "
                "the adapter's folder alone"
            )
        return self._extras <= MOST_EXTRAS


def place_of(name: str) -> tuple[str, str]:
    """Return the folder of an adapter that an entry may belong to, in one spelling, and its name there."""
    folder, _, file = name.rpartition("/")
    folder = folder.removeprefix("./").strip("/")
    for pooling in POOLING_FILES:
        if (inner := pooling.rpartition("/")[0]) and f"/{folder}/{file}".endswith(f"/{pooling}"):
            return folder.removesuffix(inner).strip("/"), pooling
    return folder, file
