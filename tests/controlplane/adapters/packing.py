"""Archives as an adapter's author makes them, and as an attacker does."""

from __future__ import annotations

import gzip
import io
import tarfile
import warnings
import zipfile
from collections.abc import Callable, Mapping

from tests.controlplane.conftest import adapter_files

Pack = Callable[..., bytes]
TRAINER_FILES = dict.fromkeys(
    ("training_args.bin", "optimizer.pt", "rng_state.pth", "scheduler.pt", "step7/model.ckpt"), b"\x80\x04"
)
"""What transformers' Trainer leaves beside an adapter: pickles, which nobody may load."""
CHECKPOINTS = {
    f"{folder}/{name}": b"of an earlier step"
    for folder in ("checkpoint-500", "checkpoint-1000")
    for name in ("README.md", *adapter_files(), *TRAINER_FILES)
}
"""What transformers' Trainer saves while it trains: copies of the adapter."""


def zipped(files: Mapping[str, bytes] | None = None, *more: tuple[zipfile.ZipInfo, bytes]) -> bytes:
    """A .zip of these files (an adapter's unless told) and more entries."""
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        warnings.simplefilter("ignore")  # of the name that is there twice
        for name, data in (adapter_files() if files is None else files).items():
            archive.writestr(name, data)
        for info, data in more:
            archive.writestr(info, data)
    return out.getvalue()


def tarred(files: Mapping[str, bytes] | None = None, *more: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """A .tar.gz of these files (an adapter's unless told) and more entries."""
    return gzip.compress(tar(files, *more), mtime=0)


def tar(files: Mapping[str, bytes] | None = None, *more: tuple[tarfile.TarInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        entries = [(tarfile.TarInfo(name), data) for name, data in (files or adapter_files()).items()]
        for info, data in [*entries, *more]:
            info.size = info.size or len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def zip_entry(name: str, mode: int = 0o100644) -> zipfile.ZipInfo:
    """An entry whose Unix mode and literal name are these."""
    info = zipfile.ZipInfo("placeholder")
    info.filename, info.external_attr, info.create_system = name, mode << 16, 3
    return info


def tar_entry(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    """An entry of this type."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def zeros(size: int) -> bytes:
    """`size` zero bytes, a multiple of 4 MiB, in gzip's form."""
    return gzip.compress(bytes(4 << 20)) * (size >> 22)
