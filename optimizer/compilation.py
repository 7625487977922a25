"""Prepares a copy's start: compiles its native loops, and packs its weights for them.

Both are looked up by their inputs, so that neither can be used for anything else: compiled loops by source,
flags and compiler (`kernels.native.build`), packed weights by the content of the checkpoint's files and the
layout (`worker_engine.checkpoint.packed_weights`).
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from contracts.recipes.progress import Code, JobError, Reporter
from contracts.recipes.recipe import Recipe


def compile_for(recipe: Recipe, checkpoint: Path, compiled: Path, reporter: Reporter) -> None:
    """Fill `compiled`, a worker's GRAFTWORK_WORKER_CACHE_DIR, as far as the recipe asks for it.

    Raises:
        JobError: unsupported_machine where there is no compiler, or no CPU that the loops run on.
    """
    # Remove incomplete files of a killed run.
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
