"""A checkpoint's linear layers as the native CPU loops take them, in one file that all copies on a host map.

Packing copies every weight into memory of the process's own. Kept in a file and mapped, the same bytes are
the page cache's: the next copy neither packs nor holds them once more. The file is a safetensors file whose
tensors begin at a multiple of a page.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import torch
from safetensors import SafetensorError, safe_open

from kernels import native
from kernels.native.matrix import NativeMatrix

log = logging.getLogger(__name__)

LAYOUT: Final = f"1:{native.LANES}"
"""Changes with `kernels.native.pack` and `kernels.native.matrix.pack_codes`."""
_ALIGNMENT: Final = 4096
_NAMES: Final = {
    torch.bfloat16: "BF16", torch.float16: "F16", torch.int32: "I32", torch.int8: "I8",
}  # fmt: skip
"""As safetensors calls them."""
_CARRIED: Final = "content-"


class PackedWeights:
    """What was packed before, by name; or, where there is nothing yet, what is packed now, to be kept."""

    def __init__(self, path: Path | None) -> None:
        """`path` None: nothing is looked up and nothing kept."""
        self._path = path
        self._mapped = {} if path is None else _open(path)
        self._made: dict[str, torch.Tensor] = {}

    @classmethod
    def of(cls, model: Path, files: list[Path], root: Path | None) -> Self:
        """Of the checkpoint `files` of `model`, in the folder `root`.

        The name tells the files' sizes, times of change and heads, so other weights have another file.
        """
        if root is None:
            return cls(None)
        digest = hashlib.sha256(LAYOUT.encode())
        for file in files:
            stat = file.stat()
            digest.update(f"\0{file.name}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode() + _head(file))
        folder = hashlib.sha256(str(model.resolve()).encode()).hexdigest()[:12]
        path = root / f"{folder}-{digest.hexdigest()[:20]}.safetensors"
        return cls(path if path.exists() else _adopted(path, files))

    @property
    def mapped(self) -> bool:
        return bool(self._mapped)

    def take(self, name: str, out: int, inner: int) -> torch.Tensor | None:
        """What `kernels.native.pack` made of bf16 [out, inner], or None; of another shape it is None."""
        found = self._mapped.get(name)
        shape = (-(-out // native.LANES), inner // 2, native.LANES, 2)
        return found if found is not None and found.shape == shape else None

    def keep(self, name: str, packed: torch.Tensor | None) -> None:
        """To be written by `write`."""
        if self._path is not None and packed is not None:
            self._made[name] = packed

    def take_matrix(self, name: str, bits: int, out: int, inner: int) -> NativeMatrix | None:
        """What `keep_matrix` was given under the name, of 4 or 8 bits; of another shape it is None."""
        codes, scales = self._mapped.get(f"{name}.codes"), self._mapped.get(f"{name}.scales")
        if codes is None or scales is None:
            return None
        matrix = NativeMatrix(codes, scales, self._mapped.get(f"{name}.zeros"), bits, out, inner)
        try:
            matrix.check()
        except (ValueError, ArithmeticError):
            return None
        return matrix

    def keep_matrix(self, name: str, matrix: NativeMatrix) -> None:
        """Quantized weights, to be written by `write`."""
        self.keep(f"{name}.codes", matrix.codes)
        self.keep(f"{name}.scales", matrix.scales)
        self.keep(f"{name}.zeros", matrix.zeros)

    def write(self) -> bool:
        """Writes what was kept, aside and renamed; True when the file is there now and was not before.

        Where it cannot be written the weights stay this process's own, and the log says why.
        """
        if self._path is None or not self._made or self._mapped:
            return False
        folder, size = self._path.parent, sum(tensor.nbytes for tensor in self._made.values())
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if shutil.disk_usage(folder).free < 2 * size:
                log.info("%s has too little room for packed weights: each copy holds its own", folder)
                return False
            with tempfile.NamedTemporaryFile(dir=folder, delete=False) as part:
                try:
                    _write(part.file.fileno(), self._made)
                    os.replace(part.name, self._path)
                except BaseException:
                    os.unlink(part.name)
                    raise
        except OSError as error:
            log.info("packed weights are not shared with other copies: %s", error)
            return False
        self._forget_older()
        return True

    def _forget_older(self) -> None:
        """What was packed of the same folder's files before they changed."""
        assert self._path is not None
        for path in self._path.parent.glob(f"{self._path.name.partition('-')[0]}-*"):
            if path != self._path:
                with suppress(OSError):
                    path.unlink()


def content_name(files: Iterable[Path]) -> str:
    """What packed weights are called that are carried to other hosts, where paths and times say nothing: by
    the content of the checkpoint's files, its config.json among them. Reads all of them."""
    digest = hashlib.sha256(LAYOUT.encode())
    weights = sorted(files)
    for file in (weights[0].with_name("config.json"), *weights):
        with file.open("rb") as opened:
            digest.update(f"\0{file.name}\0".encode() + hashlib.file_digest(opened, "sha256").digest())
    return f"{_CARRIED}{digest.hexdigest()[:40]}.safetensors"


def _adopted(path: Path, files: list[Path]) -> Path:
    """`path`, linked to the file that was packed elsewhere of the same content, if there is one.

    The checkpoint is read once on this host to be sure of it; from then on `path` tells.
    """
    if not any(path.parent.glob(f"{_CARRIED}*")):
        return path
    carried = path.parent / content_name(files)
    if not carried.is_file():
        log.info("%s holds packed weights of other checkpoints alone", path.parent)
        return path
    try:
        os.link(carried, path)
    except OSError:  # a folder that is read only, or a disk without links
        return carried
    return path


def _open(path: Path) -> Mapping[str, torch.Tensor]:
    """Mapped: a page is read when it is needed, and is the same memory in all processes until written to."""
    if not path.is_file():
        return {}
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, RuntimeError) as error:
        log.warning("%s is damaged and is not used: %s", path, error)
        with suppress(OSError):
            path.unlink()
        return {}


def _write(file: int, tensors: Mapping[str, torch.Tensor]) -> None:
    entries, at = {}, 0
    for name, tensor in tensors.items():
        entries[name] = {
            "dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape),
            "data_offsets": [at, at + tensor.nbytes],
        }  # fmt: skip
        at += tensor.nbytes
    text = json.dumps(entries).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    with os.fdopen(os.dup(file), "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            out.write(tensor.contiguous().view(torch.uint8).numpy().data)


def _head(file: Path) -> bytes:
    """The file's names, shapes and places."""
    with file.open("rb") as opened:
        return opened.read(min(int.from_bytes(opened.read(8), "little"), 1 << 24))
