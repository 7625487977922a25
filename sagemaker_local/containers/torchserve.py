"""PyTorch's container contract: TorchServe 0.12 as sagemaker-pytorch-inference 2.0.25 starts it.

Its handlers run as uploaded. Nothing is installed: what requirements.txt names must be here in that release.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from sagemaker_local.containers.contract import Container, ContractError
from sagemaker_local.copies.command import MODEL_FOLDER

_INTEGERS: Final = (
    "SAGEMAKER_MODEL_SERVER_TIMEOUT",
    "SAGEMAKER_MODEL_SERVER_WORKERS",
    "SAGEMAKER_TS_BATCH_SIZE",
    "SAGEMAKER_TS_MAX_BATCH_DELAY",
    "SAGEMAKER_TS_MAX_WORKERS",
    "SAGEMAKER_TS_MIN_WORKERS",
    "SAGEMAKER_TS_RESPONSE_TIMEOUT",
    "TS_DEFAULT_RESPONSE_TIMEOUT",
    "TS_DEFAULT_STARTUP_TIMEOUT",
)
_PINNED: Final = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?\s*(?:==\s*([^\s;]+))?")


@dataclass(frozen=True, slots=True)
class Handler:
    """The module that answers requests: `module` in `folder` on this host."""

    folder: Path
    module: str


def handler(container: Container) -> Handler:
    """Return the container's handler. Raises ContractError if the real container would not start."""
    for name in _INTEGERS:
        container.integer(name)
    folder = container.local(MODEL_FOLDER)
    program = container.environment.get("SAGEMAKER_PROGRAM", "inference.py")
    module = program.removesuffix(".py")
    if not (folder / "code" / f"{module}.py").is_file():
        _check_script(folder, program)
    for problem in _missing(folder / "code" / "requirements.txt"):
        raise ContractError(f"requirements.txt: {problem}; the local SageMaker installs nothing")
    return Handler(folder / "code", module)


def _check_script(folder: Path, program: str) -> None:
    """Refuse a model without a handler, which TorchServe loads as TorchScript."""
    files = [item.name for item in sorted(folder.glob("*")) if item.suffix in (".pt", ".pth")]
    if len(files) != 1:
        raise ContractError(
            f"{MODEL_FOLDER} has no code/{program}, and without it: Exactly one .pth or .pt file is required "
            f"for PyTorch models: {files}"
        )
    raise ContractError(f"the local SageMaker runs a handler in code/{program}, and no TorchScript file")


def _missing(file: Path) -> Iterator[str]:
    """Yield why a requirement is not met here."""
    for line in file.read_text().splitlines() if file.is_file() else ():
        wanted = line.partition("#")[0].strip()
        found = _PINNED.fullmatch(wanted.partition(";")[0].strip())
        if wanted and found is None:
            yield f"{wanted} is no `name==release`"
        elif wanted and found is not None:
            yield from _unmet(found[1], found[2])


def _unmet(name: str, release: str | None) -> Iterator[str]:
    try:
        installed = metadata.version(name)
    except metadata.PackageNotFoundError:
        yield f"{name} is not installed here"
        return
    if release and installed.partition("+")[0] != release:
        yield f"{name} is {installed} here, not {release}"
