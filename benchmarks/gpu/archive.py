"""One file of everything: each part's JSON, the roofline, tuned configurations."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Final

NAME: Final = "gpu_report.tar.gz"


def write(folder: Path) -> Path:
    """Packs what stands in `folder` anew and returns the archive's path."""
    target = folder / NAME
    aside = target.with_suffix(".part")
    with tarfile.open(aside, "w:gz") as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path not in (target, aside):
                archive.add(path, Path("gpu_report") / path.relative_to(folder))
    aside.replace(target)
    return target
