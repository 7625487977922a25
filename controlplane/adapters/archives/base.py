"""What an archive may hold: the rules that .zip and .tar.gz share."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from contracts.adapters.foreign_weights import refusal_of_others
from contracts.adapters.reference import ADAPTER_FILES
from controlplane.artifacts.store import ByteStream
from controlplane.artifacts.uploads.file_names import MODEL_CARD, name_fault, one_name
from controlplane.errors import RefusedError

Put = Callable[[str, ByteStream], None]
"""Stores one of ADAPTER_FILES, or the model card, in place of an earlier one.

Refuses more than that file's bytes.
"""

MAX_RATIO: Final = 200
"""Times that data may grow. Weights hardly shrink; only the zeros of a fresh adapter, half of it, do."""
RATIO_COUNTS_FROM: Final = 16 << 20
"""Unpacked bytes below which any ratio is harmless."""
MAX_ENTRIES: Final = 1000
MOST_CARDS: Final = 16
"""That are held until it shows which folder is the adapter's."""
MAX_READ: Final = 2 << 20
"""Longest single read that an archive's own lengths may cause: a directory or header beyond it is hostile."""

_CHECKPOINT: Final = re.compile(r"checkpoint-[0-9]+")
"""Folders of transformers' Trainer."""


class Entries:
    """Judges an archive's entries one by one, and says which of ADAPTER_FILES an entry is, or the card.

    A trainer's output holds the adapter, and `checkpoint-<step>` folders with copies of earlier steps, which
    are skipped. One such folder may also be packed alone: until an adapter comes, the first checkpoint's
    files are given out, and the adapter's files then replace them.
    """

    def __init__(self) -> None:
        self._seen = set[str]()
        self._found = dict[str, str]()
        self._checkpoints = dict[str, set[str]]()
        self._cards = 0

    def admit(self, name: str, *, kind: str, is_folder: bool = False) -> str | None:
        """The adapter file that this entry is, or a card that may be the adapter's, else None.

        Args:
            kind: `file`, or in words what else it is, which is refused.

        Raises:
            RefusedError: the archive is not acceptable because of it.
        """
        if kind != "file":
            raise RefusedError(f"{name[:200]!r} in the archive is a {kind}: pack plain files alone")
        if fault := name_fault(name):
            raise RefusedError(f"the name {name[:200]!r} in the archive {fault}: pack the adapter's folder")
        if len(self._seen) >= MAX_ENTRIES:
            raise RefusedError(
                f"the archive holds more than {MAX_ENTRIES} entries: pack the adapter's folder"
            )
        if (folded := one_name(name)) in self._seen and not is_folder:
            raise RefusedError(
                f"{name[:200]!r} is in the archive twice, if case and Unicode's forms are folded"
            )
        self._seen.add(folded)
        if is_folder:
            return None
        return self._adapter_file(name)

    def finish(self) -> None:
        """Raises RefusedError unless both files came, out of one folder."""
        self._choose_checkpoint()
        if missing := [file for file in ADAPTER_FILES if file not in self._found]:
            files = [name.rpartition("/")[2] for name in self._seen]
            if missing == [ADAPTER_FILES[1]] and (refusal := refusal_of_others(files)):
                raise RefusedError(refusal)
            raise RefusedError(f"the archive holds no {' and no '.join(missing)}: pack the adapter's folder")
        if len(set(self._found.values())) > 1:
            raise RefusedError(f"{' and '.join(ADAPTER_FILES)} lie in different folders of the archive")

    @property
    def folder(self) -> str:
        """The adapter's, as `folder_of` has it; known once `finish` is content."""
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
        folder, file = folder_of(name), name.rpartition("/")[2]
        if file not in (*ADAPTER_FILES, MODEL_CARD):
            return None
        if any(_CHECKPOINT.fullmatch(part) for part in folder.split("/")):
            return self._checkpoint_file(folder, file)
        if file == MODEL_CARD:
            return file if self._may_be_own(folder) else None
        if file in self._found:
            raise RefusedError(f"the archive holds {file} in two folders: pack one adapter alone")
        self._found[file] = folder
        return file

    def _checkpoint_file(self, folder: str, file: str) -> str | None:
        """Return `file` for the first checkpoint until the adapter comes; None for the others."""
        files = self._checkpoints.setdefault(folder, set())
        if file != MODEL_CARD:
            files.add(file)
        return None if self._found or folder != next(iter(self._checkpoints)) else file

    def _may_be_own(self, folder: str) -> bool:
        if self._found:
            return folder in self._found.values()
        self._cards += 1
        return self._cards <= MOST_CARDS


def folder_of(name: str) -> str:
    """The folder of an entry, the same whichever way it is written."""
    return name.rpartition("/")[0].removeprefix("./").strip("/")
