"""The GPU report: correctness, kernel times, engine times and tuning, on one GPU, into one archive.

    python benchmarks/gpu_report.py --part correctness|kernels|engine|tune [--resume] --out DIR

Runs from a checkout without installation. See docs/gpu-report.md.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

if __name__ == "__main__":
    start = time.monotonic()  # loading torch counts
    here = Path(__file__).resolve().parent
    # Python puts a script's own folder on its path, where `kernels` would be benchmarks/kernels.
    sys.path[:] = [str(here.parent), *(path for path in sys.path if Path(path).resolve() != here)]
    from benchmarks.gpu.command import main

    sys.exit(main(start=start))
