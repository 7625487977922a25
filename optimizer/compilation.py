"""A copy's start prepared: its loops compiled, and its weights packed as they read them.

Both are looked up by what they were made of, so that neither can be used for anything else: compiled loops by
their source, flags and compiler (`kernels.native.build`), packed weights by the content of the checkpoint's
files and the layout (`worker_engine.checkpoint.packed_weights`).
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from contracts.recipes.progress import Code, JobError, Reporter
from contracts.recipes.recipe import Recipe


def compile_for(recipe: Recipe, checkpoint: Path, compiled: Path, reporter: Reporter) -> None:
    """Fills `compiled`, which is a worker's GRAFTWORK_WORKER_CACHE_DIR; does nothing where nothing is asked.

    Raises:
        JobError: unsupported_machine where there is no compiler, or no CPU that the loops run on.
    """
    # What a killed run left half-made.
    shutil.rmtree(compiled, ignore_errors=True)
    if recipe.compilation.ahead_of_time:
        reporter.progress(0.0, "compiling the CPU's loops")
        _compile_loops(compiled)
    if recipe.compilation.packed:
        reporter.progress(0.5, "packing weights")
        _pack(checkpoint, compiled / "weights")
    reporter.progress(1.0)


def _compile_loops(compiled: Path) -> None:
    from kernels.native.build import libraries

    try:
        libraries(compiled)
    except (RuntimeError, subprocess.SubprocessError) as error:
        raise JobError(
            Code.UNSUPPORTED_MACHINE, f"the CPU's loops cannot be compiled here: {error}"
        ) from error


def _pack(checkpoint: Path, folder: Path) -> None:
    from worker_engine.errors import CheckpointError
    from worker_engine.models import pack_weights

    try:
        pack_weights(checkpoint, folder)
    except CheckpointError as error:
        raise JobError(Code.UNSUPPORTED_MACHINE, str(error)) from error
