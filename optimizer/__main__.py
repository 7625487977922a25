"""`python -m optimizer run|compare|presets ORDER.json --output PATH`.

Events go to stdout, one per line (`progress`); output of libraries goes to stderr. SIGTERM and SIGINT cancel
the job, and the same command resumes it.
"""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Any, Final, NoReturn

from contracts.recipes.progress import EXIT_STATUS, Cancelled, Code, JobError, Phase, Reporter
from contracts.recipes.spec_fields import SpecError, SpecFields

Work = Callable[[Reporter], Mapping[str, Any]]
_STOPPED_BY: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(arguments: Sequence[str] | None = None) -> int:
    """Return exit status 0 with a result, else `EXIT_STATUS` of the error's code."""
    parser = argparse.ArgumentParser(prog="python -m optimizer", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, what in (
        ("run", "the folder to fill"),
        ("compare", "the file to write"),
        ("presets", "the file to write"),
    ):
        command = commands.add_parser(name)
        command.add_argument("spec", type=Path, help="the order, as JSON")
        command.add_argument("--output", type=Path, required=True, help=what)
    flags = parser.parse_args(arguments)
    out = _private_stdout()
    _cancel_on_signals()
    return carry_out(flags.command, flags.spec, flags.output, out)


def carry_out(command: str, spec: Path, output: Path, out: IO[str]) -> int:
    """Read the order and execute it; every end except a kill writes a final event."""
    reporter = Reporter(out, (Phase("order"),))
    try:
        phases, work = _prepare(command, spec, output)
        reporter = Reporter(out, phases)
        reporter.result(**work(reporter))
        return 0
    except Cancelled as error:
        failure = JobError(Code.CANCELLED, str(error) or "cancelled: the same command goes on from here")
    except JobError as error:
        failure = error
    except SpecError as error:
        failure = JobError(Code.BAD_ORDER, str(error))
    except MemoryError:
        failure = JobError(Code.OUT_OF_MEMORY, "the machine has too little memory for this model")
    except Exception as error:  # the caller must receive an error event whatever the exception
        traceback.print_exc(file=sys.stderr)
        failure = _failure(error)
    _ignore_signals()
    reporter.error(failure)
    return EXIT_STATUS[failure.code]


def _prepare(command: str, spec: Path, output: Path) -> tuple[Sequence[Phase], Work]:
    """Read the order. Raises SpecError if it is malformed, before anything heavy is imported."""
    fields = SpecFields.load(spec)
    if command == "run":
        from optimizer.order import RunOrder

        order = RunOrder.read(fields)
        from optimizer import job

        return job.PHASES, lambda reporter: job.run(order, output, reporter)
    if command == "presets":
        from optimizer.measurement import presets

        presets_order = presets.PresetsOrder(fields)
        return presets.PHASES, lambda reporter: presets.measure_presets(presets_order, output, reporter)
    from optimizer.measurement.comparison_order import ComparisonOrder

    comparison = ComparisonOrder.read(fields)
    from optimizer.measurement.compare import PHASES, compare

    return PHASES, lambda reporter: compare(comparison, output, reporter)


def _failure(error: Exception) -> JobError:
    from worker_engine.errors import CheckpointError, ConfigError, WorkerError

    if isinstance(error, WorkerError) and (code := getattr(error, "code", None)) in set(Code):
        return JobError(Code(code), str(error))

    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            return JobError(Code.OUT_OF_DISK, f"the disk is full: make room and start it again ({cause})")
        cause = cause.__cause__
    if isinstance(error, CheckpointError):
        return JobError(Code.UNSUPPORTED_MODEL, str(error))
    if isinstance(error, ConfigError):
        return JobError(Code.BAD_ORDER, str(error))
    if "out of memory" in str(error).lower() or "can't allocate memory" in str(error).lower():
        return JobError(Code.OUT_OF_MEMORY, f"too little memory for this model: {error}")
    return JobError(Code.FAILED, f"{type(error).__name__}: {error}")


def _private_stdout() -> IO[str]:
    """Return a copy of stdout for events; later writes to stdout, subprocesses included, go to stderr."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return out


def _cancel_on_signals() -> None:
    def cancel(number: int, frame: FrameType | None) -> NoReturn:
        _ignore_signals()
        raise Cancelled(f"cancelled by {signal.Signals(number).name}: the same command goes on from here")

    for number in _STOPPED_BY:
        signal.signal(number, cancel)


def _ignore_signals() -> None:
    """Ignore further signals while the job ends, so that they cannot cut off its last event."""
    for number in _STOPPED_BY:
        signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    sys.exit(main())
