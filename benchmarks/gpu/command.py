"""`gpu_report.py`'s command line: runs one part, draws the roofline, packs the archive, prints the table."""

from __future__ import annotations

import argparse
import sys
import tarfile
import time
from pathlib import Path
from typing import Final

from benchmarks.gpu import roofline, table
from benchmarks.gpu.report import Report
from benchmarks.gpu.runner import Budget, Worker, run_part
from benchmarks.gpu.worker import load_part

ARCHIVE: Final = "gpu_report.tar.gz"
PARTS: Final = ("correctness", "kernels", "quantization", "engine", "tune")
BUDGET_S: Final = 440.0
"""Eight minutes, less what the last row, the picture and the archive may still take."""


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="gpu_report.py", description="The GPU report; see docs/gpu-report.md."
    )
    parser.add_argument("--part", required=True, choices=PARTS)
    parser.add_argument("--out", required=True, type=Path, metavar="DIR")
    parser.add_argument("--resume", action="store_true", help="keep DIR's rows and make those that are left")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="by default cuda where there is one")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: that it runs, not how fast")
    parser.add_argument("--budget", type=float, default=BUDGET_S, metavar="SECONDS")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None, *, start: float | None = None) -> int:
    """Runs one part. 0 when every row that was made passed, 1 when one failed, 2 when nothing could run."""
    options = arguments(argv)
    device = options.device or _default_device()
    options.out.mkdir(parents=True, exist_ok=True)
    part = load_part(options.part)
    try:
        report = Report.open(
            options.out, options.part, device=device, quick=options.quick, resume=options.resume
        )
        budget = Budget(options.budget, time.monotonic() if start is None else start)
        with Worker(options.part, device, options.quick, options.out) as worker:
            run_part(part.tasks(options.quick, device), report, worker, budget)
    except (ValueError, RuntimeError) as error:
        print(f"gpu_report: {error}", file=sys.stderr)
        return 2
    roofline.draw(report)
    archive = _archive(options.out)
    for line in table.lines(report, part.goals(report.rows), part.summary(report.rows)):
        print(line)
    print(f"everything is in {archive}")
    return 1 if report.failed else 0


def _archive(folder: Path) -> Path:
    """Pack everything in `folder`: each part's JSON, the roofline, tuned configurations."""
    target = folder / ARCHIVE
    aside = target.with_suffix(".part")
    with tarfile.open(aside, "w:gz") as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path not in (target, aside):
                archive.add(path, Path("gpu_report") / path.relative_to(folder))
    aside.replace(target)
    return target


def _default_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
