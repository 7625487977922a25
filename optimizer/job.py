"""`run`: executes one recipe step by step; each finished step is recorded, so that a killed job resumes.

Nothing is registered: the output is a folder that is complete once it has a `lineage.json`, and is identified
by its content.
"""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from contracts.recipes.compatibility import reasons
from contracts.recipes.model_facts import Checkpoint, checkpoint_files, sha256_of
from contracts.recipes.progress import Cancelled, Code, JobError, Phase, Reporter
from contracts.recipes.recipe import Head, Quantization
from optimizer import compilation
from optimizer.copying import copy_files, source_changed
from optimizer.order import RunOrder
from optimizer.output_folder import OutputFolder
from optimizer.prompt_lines import read_lines
from worker_engine.errors import OptimizationError

PHASES: Final = (
    Phase("source", 2),
    Phase("checkpoint", 90),
    Phase("compilation", 6),
    Phase("verification", 2),
)
FORMAT: Final = 1
"""Incremented when the same order would give a different result."""
LEAST_CALIBRATION: Final = 16
_PARTS: Final[Mapping[Quantization, float]] = {
    Quantization.NONE: 1.0,
    Quantization.INT8: 0.7,
    Quantization.AWQ_G128: 0.5,
    Quantization.AWQ_G64: 0.5,
    Quantization.AWQ3_G128: 0.45,
    Quantization.RTN_G128: 0.5,
    Quantization.FP8: 0.7,
}
"""Upper bound of the output's size relative to the source's, including unquantized embeddings."""
_SPARE: Final = 64 << 20
_LIBRARIES: Final = ("graftwork", "torch", "numpy", "safetensors")


def run(order: RunOrder, output: Path, reporter: Reporter) -> Mapping[str, Any]:
    """Execute the order and return the result's fields: `output`, `digest`, `lineage`, `reused`, `serve`.

    Raises:
        JobError: with a code for the reason. Finished steps are kept for the next try.
        SpecError: a folder is not a checkpoint.
        Cancelled: from the reporter, or by a signal.
    """
    reporter.phase("source")
    _demand_compatible(order)
    texts = _calibration(order)
    source = _digests(order, reporter)
    identity = {"format": FORMAT, **order.identity(source.digest)}
    with OutputFolder.open(output, identity, versions(), reporter.log) as folder:
        if lineage := folder.finished():
            reporter.log(f"{output} is whole already, and verified")
            return _result(output, lineage, reused=True)
        _demand_room(order, source, output)
        folder.begin()
        reporter.phase("checkpoint")
        if folder.done("checkpoint"):
            reporter.already()
        else:
            _make_checkpoint(order, source, output / "checkpoint", texts, reporter)
            folder.record("checkpoint", "checkpoint")
        reporter.phase("compilation")
        if folder.done("compilation"):
            reporter.already()
        else:
            compilation.compile_for(order.recipe, output / "checkpoint", output / "compiled", reporter)
            folder.record("compilation", "compiled")
        reporter.phase("verification")
        _verify(order, output / "checkpoint")
        lineage = folder.finish(
            source={"name": order.source.name, "digest": source.digest}, serve=_serve(order)
        )
        return _result(output, lineage, reused=False)


def versions() -> dict[str, str]:
    """Return the versions of software that may change a recipe's result."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in _LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _demand_compatible(order: RunOrder) -> None:
    if found := reasons(order.stack()):
        report = [{"code": reason.code, "text": reason.text} for reason in found]
        kinds = {reason.code for reason in found}
        code = Code.UNSUPPORTED_MODEL if kinds == {"architecture_not_served"} else Code.INCOMPATIBLE
        raise JobError(code, "; ".join(reason.text for reason in found), report)


def _calibration(order: RunOrder) -> list[str]:
    """Return the calibration texts. Read first, so that a malformed line is reported at once."""
    if not order.calibrates:
        return []
    return [line.plain for line in read_lines(order.calibration, least=LEAST_CALIBRATION)]


def _digests(order: RunOrder, reporter: Reporter) -> Checkpoint:
    paths = checkpoint_files(order.source)
    total, read, files = sum(path.stat().st_size for path in paths), 0, {}
    for path in paths:
        size = path.stat().st_size
        files[path.name] = (size, sha256_of(path))
        read += size
        reporter.progress(read / max(total, 1), f"read {path.name}")
    return Checkpoint(files)


def _demand_room(order: RunOrder, source: Checkpoint, output: Path) -> None:
    """Raise JobError if the disk is too full; files already in the output count as available."""
    part = _PARTS[order.recipe.quantization] + (1.0 if order.recipe.compilation.packed else 0.0)
    there = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
    needed = int(source.size * part) + _SPARE - there
    free = shutil.disk_usage(output).free
    if free < needed:
        raise JobError(
            Code.OUT_OF_DISK,
            f"{output} has {free >> 20} MiB free, the job needs {needed >> 20} more: "
            "make room and start it again",
        )


def _make_checkpoint(
    order: RunOrder, source: Checkpoint, target: Path, texts: list[str], reporter: Reporter
) -> None:
    if order.adapter is not None:
        from optimizer.merging import merge

        merge(order.source, source, order.adapter, target, reporter)
        return
    if order.recipe.quantization is Quantization.NONE:
        copy_files(order.source, source, target, reporter)
        return
    # Imported late: torch takes seconds, and an invalid order is reported before.
    from optimizer.quantization import Scheme, quantize

    def report(phase: str, fraction: float) -> None:
        reporter.progress(fraction, phase)

    # A rename makes the folder appear complete, even if the run was killed before it recorded the step.
    if not target.exists():
        scheme = Scheme(order.recipe.quantization.value)
        try:
            quantize(order.source, target, scheme, texts, report, int8_head=order.recipe.head is Head.INT8)
        except OptimizationError as error:
            raise JobError(Code(error.code), str(error)) from error
    for name, (_, sha256) in source.files.items():
        if sha256_of(order.source / name) != sha256:
            raise source_changed(order.source / name)


def _verify(order: RunOrder, checkpoint: Path) -> None:
    """Check that the worker can read the checkpoint."""
    from worker_engine.errors import CheckpointError
    from worker_engine.models import load_config

    try:
        load_config(checkpoint)
    except CheckpointError as error:
        raise JobError(Code.FAILED, f"the worker refuses what came out: {error}") from error


def _serve(order: RunOrder) -> dict[str, Any]:
    """Return flags and environment of a worker that serves the output; paths are relative to it."""
    compiled = order.recipe.compilation.ahead_of_time or order.recipe.compilation.packed
    return {
        "model": "checkpoint",
        "flags": order.recipe.worker_flags(),
        "environment": {"GRAFTWORK_WORKER_CACHE_DIR": "compiled"} if compiled else {},
    }


def _result(output: Path, lineage: Mapping[str, Any], *, reused: bool) -> Mapping[str, Any]:
    return {
        "output": str(output),
        "digest": lineage["digest"],
        "bytes": sum(size for size, _ in lineage["files"].values()),
        "lineage": str(output / "lineage.json"),
        "serve": lineage["serve"],
        "reused": reused,
    }


__all__ = ["PHASES", "Cancelled", "run", "versions"]
