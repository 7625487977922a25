"""One attempt at a work: admit it, run the subprocess, write its progress, record how it ended."""

from __future__ import annotations

import datetime as dt
import errno
import logging
import shutil
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from celery.exceptions import SoftTimeLimitExceeded
from django.utils import timezone

from contracts.recipes.progress import Code
from controlplane.errors import ControlPlaneError, InvalidInputError, UnavailableError
from controlplane.optimization.admission import NeverFitsError, NoRoomYetError, seat_take
from controlplane.optimization.claims import MOST_LOST, Claim, ClaimLostError
from controlplane.optimization.database_patience import DatabasePatience
from controlplane.optimization.endings import attempt_begin, attempt_end, attempt_seen, lost_close, work_end
from controlplane.optimization.events import event_add
from controlplane.optimization.models import ComparisonRun, Status, Work
from controlplane.optimization.orders import order_of
from controlplane.optimization.subprocesses import Optimizer, OptimizerProgress
from controlplane.optimization.workspace import OUTPUT, FileLock, HeldError, log_tail, work_folder

logger = logging.getLogger(__name__)
_TICK_S: Final = 0.25
_WRITE_S: Final = 1.0
"""Shortest time between two writes of the row, however often the process reports."""
_RETRY_LOST_S: Final = 5.0
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_PROGRESS_MADE: Final = 1.0
"""Percent of progress in one attempt that resets the count of lost attempts."""


class _CancelledError(Exception):
    """A cancel was requested."""


class _RetryError(Exception):
    """This attempt is over; another attempt continues the work."""

    def __init__(self, reason: str, *, seconds: float, lost: bool = False) -> None:
        super().__init__(reason)
        self.seconds, self.lost = seconds, lost


class _FailedError(Exception):
    """The work is over without a result."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def work_run(*, kind: str, pk: int) -> None:
    """Run one attempt at a work; do nothing if another process holds it or it has ended."""
    claim = Claim.take(kind=kind, pk=pk)
    if claim is None:
        return
    try:
        WorkAttempt(claim).run()
    except ClaimLostError:
        logger.warning("%s %s: another process has taken over", kind, pk)


class WorkAttempt:
    """The attempt that `claim` is for."""

    def __init__(self, claim: Claim) -> None:
        self._claim = claim
        self._work: Work = claim.row()
        self._folder: Path = work_folder(self._work)
        self._written, self._last_renewed, self._last_written = 0.0, 0.0, ""
        self._subject = ""
        self._retry_database = DatabasePatience()

    def run(self) -> None:
        """Run the attempt; record its outcome in the row and release the lease, whatever happens."""
        lost_close(self._work)
        try:
            self._check_wanted()
            self._attempt()
        except _CancelledError:
            work_end(self._claim, Status.CANCELLED, "cancelled", "")
        except _FailedError as error:
            work_end(self._claim, Status.FAILED, str(error), error.code, log=log_tail(self._folder))
        except (NoRoomYetError, _RetryError) as error:
            self._put_off(error)
        except SoftTimeLimitExceeded:
            self._timed_out()
        except NeverFitsError as error:
            work_end(self._claim, Status.FAILED, str(error), "no_room")
        except UnavailableError as error:
            self._put_off(_RetryError(str(error), seconds=30.0))
        except ControlPlaneError as error:
            code = "source" if isinstance(error, InvalidInputError) else Code.FAILED.value
            work_end(self._claim, Status.FAILED, str(error), code)
        except OSError as error:
            text = f"{error.strerror}: {error.filename or self._folder}"
            work_end(self._claim, Status.FAILED, text, "out_of_disk" if error.errno in _FULL else "failed")
        except ClaimLostError:
            raise
        except Exception as error:  # any other error: record it for the user, and let another attempt try
            logger.exception("%s", self._work)
            self._put_off(
                _RetryError(f"{type(error).__name__}: {error}"[:500], seconds=_RETRY_LOST_S, lost=True)
            )

    def _timed_out(self) -> None:
        """Retry a job, which resumes after its last layer; fail a comparison, which would start over."""
        if isinstance(self._work, ComparisonRun):
            text = "it exceeds the time limit of an attempt: use fewer rounds, arms, texts or streams"
            work_end(self._claim, Status.FAILED, text, "too_long", log=log_tail(self._folder))
        else:
            self._put_off(
                _RetryError("the attempt reached its time limit: another attempt continues", seconds=1.0)
            )

    def _check_wanted(self) -> None:
        work = self._work
        if work.cancel_asked_at is not None:
            raise _CancelledError
        if work.lost_attempts >= MOST_LOST:
            raise _FailedError(
                Code.WORKER_FAILED.value,
                f"its process vanished {work.lost_attempts} times in a row, last in phase"
                f" {work.phase or 'start'!r}: the machine may have too little memory. Finished steps"
                f" are kept: request the same job again to resume. {work.reason}".rstrip(),
            )

    def _attempt(self) -> None:
        order = order_of(self._work)
        with ExitStack() as resources:
            try:
                lock = FileLock(self._folder / "lock")
            except HeldError:
                raise _RetryError("a process of an earlier attempt is still ending", seconds=5.0) from None
            resources.callback(lock.close)
            seat = seat_take(order.needs)
            resources.callback(seat.close)
            order.prepare(self._folder, self._heartbeat)
            self._begin()
            try:
                arguments = order.arguments(self._folder)
                optimizer = Optimizer.start(
                    arguments,
                    log=self._folder / "log",
                    environment=seat.environment,
                    fds=(lock.fd, *seat.fds),
                )
                progress = self._follow(optimizer)
                result = dict(progress.last or {})
                order.keep(self._claim, self._folder, result, self._heartbeat)
            finally:
                attempt_end(self._subject)

    def _begin(self) -> None:
        self._subject = attempt_begin(self._claim, host=socket.gethostname())
        self._work = self._claim.row()
        event_add(self._work, "started", f"attempt {self._work.attempts} on {self._work.host}")

    def _follow(self, optimizer: Optimizer) -> OptimizerProgress:
        """Write the process's progress until it ends; return its last progress, with the result."""
        try:
            while (status := optimizer.ended(within=_TICK_S)) is None:
                self._retry_database(self._write, optimizer.progress)
        except _CancelledError:
            optimizer.stop()
            raise
        except BaseException:
            optimizer.stop(grace=1.0)
            raise
        self._retry_database(self._write_last, optimizer.progress)
        return self._judged(optimizer.progress, status)

    def _judged(self, progress: OptimizerProgress, status: int) -> OptimizerProgress:
        """Return `progress` if the process ended with a result; else raise the error that fits."""
        last = progress.last or {}
        if status == 0 and last.get("event") == "result":
            return progress
        if last.get("event") != "error":
            raise _RetryError(
                f"its process ended with status {status}, or was killed: {log_tail(self._folder)[-500:]}",
                seconds=_RETRY_LOST_S,
                lost=True,
            )
        code, text = str(last["code"]), str(last["message"])
        if code in (Code.OUTPUT_DAMAGED, Code.OUTPUT_EXISTS):
            # Only this work writes the folder, so its content was damaged by the disk or other software.
            shutil.rmtree(self._folder / OUTPUT, ignore_errors=True)
            raise _RetryError(f"it starts over: {text}", seconds=1.0, lost=True)
        if code == Code.BUSY:
            raise _RetryError(text, seconds=5.0)
        if code == Code.CANCELLED:
            raise _RetryError("its process was ended externally", seconds=_RETRY_LOST_S, lost=True)
        raise _FailedError(code, text)

    def _write_last(self, progress: OptimizerProgress) -> None:
        """Write the final progress at once, without the usual delay between writes."""
        self._written = 0.0
        self._write(progress)

    def _write(self, progress: OptimizerProgress) -> None:
        """Update the row at most once a second. Raises _CancelledError when a cancel was requested."""
        clock = time.monotonic()
        if clock - self._written < _WRITE_S:
            return
        values: dict[str, Any] = {
            "phase": progress.phase,
            "percent": min(max(progress.percent, 0.0), 100.0),
            "eta_seconds": progress.eta_seconds,
            "log_tail": log_tail(self._folder),
        }
        if progress.percent > self._work.percent + _PROGRESS_MADE and self._work.lost_attempts:
            values["lost_attempts"] = 0
        if repr(values) != self._last_written:
            self._claim.write(**values, progress_at=_now())
            self._last_written = repr(values)
        self._heartbeat()
        # Set last, so that only a finished write counts as a sign that the database is back.
        self._written = clock

    def _heartbeat(self) -> None:
        """Renew the lease and raise _CancelledError if a cancel was requested."""
        self._claim.renew()
        clock = time.monotonic()
        if clock - self._last_renewed < _WRITE_S:
            return
        attempt_seen(self._subject)
        if self._claim.row().cancel_asked_at is not None:
            raise _CancelledError
        self._last_renewed = clock

    def _put_off(self, error: NoRoomYetError | _RetryError) -> None:
        """Release the work as waiting, for another attempt here or on another host."""
        lost = isinstance(error, _RetryError) and error.lost
        work = self._claim.row()
        if work.cancel_asked_at is not None:
            work_end(self._claim, Status.CANCELLED, "cancelled", "")
            return
        if work.reason != str(error):
            event_add(work, "lost" if lost else "waits", str(error))
        self._claim.release(
            status=Status.WAITING,
            reason=str(error),
            next_at=_now(error.seconds),
            lost_attempts=work.lost_attempts + lost,
        )


def _now(seconds: float = 0.0) -> dt.datetime:
    return timezone.now() + dt.timedelta(seconds=seconds)
