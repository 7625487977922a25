"""Linear weights packed for the native CPU loops, in one file that all copies on a host map into memory.

Packing otherwise copies every weight into private memory. Mapping the file shares the page cache, so the next
copy neither packs nor stores them again. It is a safetensors file with page-aligned tensors.
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

LAYOUT: Final = f"2:{native.LANES}"
"""Version of the layout of `kernels.native.pack` and `kernels.native.matrix.pack_codes`."""
_ALIGNMENT: Final = 4096
_NAMES: Final = {torch.bfloat16: "BF16", torch.float16: "F16", torch.int32: "I32", torch.int8: "I8"}
"""Names of the dtypes in safetensors."""
_CARRIED: Final = "content-"


class PackedWeights:
    """Packed weights by name: mapped from the file if it exists, otherwise collected so that `write` creates
    it.
    """

    def __init__(self, path: Path | None) -> None:
        """Map the file at `path` if it exists. With None, nothing is mapped or written."""
        self._path = path
        self._mapped = {} if path is None else _open(path)
        self._made: dict[str, torch.Tensor] = {}

    @classmethod
    def for_checkpoint(cls, model: Path, files: list[Path], root: Path | None) -> Self:
        """Return the packed weights of the checkpoint `files` of `model`, in the folder `root`.

        The file name hashes the files' sizes, modification times and headers, so changed weights get another
        file.
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

    def take(self, name: str, bits: int, out: int, inner: int) -> NativeMatrix | None:
        """Return a weight [out, inner] of 4, 8 or 16 bits; None if it is missing or of another shape."""
        codes, *rest = (self._mapped.get(key) for key in _keys(name, bits))
        if codes is None:
            return None
        scales, zeros = rest or (None, None)
        matrix = NativeMatrix(codes, scales, zeros, bits, out, inner)
        try:
            matrix.check()
        except (ValueError, ArithmeticError):
            return None
        return matrix

    def keep(self, name: str, matrix: NativeMatrix) -> None:
        """Remember a weight for `write`."""
        if self._path is not None:
            parts = zip(_keys(name, matrix.bits), (matrix.codes, matrix.scales, matrix.zeros), strict=False)
            self._made |= {key: part for key, part in parts if part is not None}

    def write(self) -> bool:
        """Write the remembered weights atomically; return True if this call created the file.

        If it cannot be written, the weights stay private to this process and the log says why.
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
        """Delete files that were packed from earlier versions of the same checkpoint folder."""
        assert self._path is not None
        for path in self._path.parent.glob(f"{self._path.name.partition('-')[0]}-*"):
            if path != self._path:
                with suppress(OSError):
                    path.unlink()


def _keys(name: str, bits: int) -> tuple[str, ...]:
    """Return the file's names of a weight's codes, scales and zeros; 16 bits have codes only."""
    return (name,) if bits == 16 else (f"{name}.codes", f"{name}.scales", f"{name}.zeros")


def content_name(files: Iterable[Path]) -> str:
    """Return the file name of packed weights that are shipped to other hosts, where paths and times differ.

    The name hashes the content of config.json and of the weight files. Reads all of them.
    """
    digest = hashlib.sha256(LAYOUT.encode())
    weights = sorted(files)
    for file in (weights[0].with_name("config.json"), *weights):
        with file.open("rb") as opened:
            digest.update(f"\0{file.name}\0".encode() + hashlib.file_digest(opened, "sha256").digest())
    return f"{_CARRIED}{digest.hexdigest()[:40]}.safetensors"


def _adopted(path: Path, files: list[Path]) -> Path:
    """Return `path`, linked to a shipped file with the same content if there is one.

    The first start on a host reads the whole checkpoint to verify this; later starts find `path`.
    """
    if not any(path.parent.glob(f"{_CARRIED}*")):
        return path
    carried = path.parent / content_name(files)
    if not carried.is_file():
        log.info("%s holds packed weights of other checkpoints alone", path.parent)
        return path
    try:
        os.link(carried, path)
    except OSError:  # read-only folder, or a file system without hard links
        return carried
    return path


def _open(path: Path) -> Mapping[str, torch.Tensor]:
    """Map the file: pages are read on demand and shared between processes until written to."""
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
    entries, offset = {}, 0
    for name, tensor in tensors.items():
        entries[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.nbytes],
        }
        offset += tensor.nbytes
    text = json.dumps(entries).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    with os.fdopen(os.dup(file), "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            out.write(tensor.contiguous().view(torch.uint8).numpy().data)


def _head(file: Path) -> bytes:
    """Return the safetensors header: names, dtypes, shapes and offsets."""
    with file.open("rb") as opened:
        return opened.read(min(int.from_bytes(opened.read(8), "little"), 1 << 24))
