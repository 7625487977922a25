"""One attempt at a work: find room, start the subprocess, keep the row up to date, end as it ended."""

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
from controlplane.optimization.subprocesses import Optimizer, Told
from controlplane.optimization.workspace import OUTPUT, FileLock, HeldError, log_tail, work_folder

logger = logging.getLogger(__name__)
_TICK_S: Final = 0.25
_WRITE_S: Final = 1.0
"""The row is written at most this often, whatever the process says."""
_LOST_AGAIN_S: Final = 5.0
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_GAINED: Final = 1.0
"""Percent of progress in one attempt, after which earlier lost ones are forgiven."""


class _CancelledError(Exception):
    """Somebody asked for the end."""


class _AgainError(Exception):
    """This attempt is over, the work is not: another one goes on."""

    def __init__(self, reason: str, *, seconds: float, lost: bool = False) -> None:
        super().__init__(reason)
        self.seconds, self.lost = seconds, lost


class _FailedError(Exception):
    """The work is over without a result."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def work_run(*, kind: str, pk: int) -> None:
    """Brings a work as far as it goes now; nothing where another process is at it, or it has ended."""
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
        self._written, self._beaten, self._said = 0.0, 0.0, ""
        self._subject = ""
        self._patiently = DatabasePatience()

    def run(self) -> None:
        """Ends with the row in a state that says what is so, and the lease given back."""
        lost_close(self._work)
        try:
            self._demand_going_on()
            self._attempt()
        except _CancelledError:
            work_end(self._claim, Status.CANCELLED, "cancelled", "")
        except _FailedError as error:
            work_end(self._claim, Status.FAILED, str(error), error.code, log=log_tail(self._folder))
        except (NoRoomYetError, _AgainError) as error:
            self._later(error)
        except SoftTimeLimitExceeded:
            self._too_long()
        except NeverFitsError as error:
            work_end(self._claim, Status.FAILED, str(error), "no_room")
        except UnavailableError as error:
            self._later(_AgainError(str(error), seconds=30.0))
        except ControlPlaneError as error:
            code = "source" if isinstance(error, InvalidInputError) else Code.FAILED.value
            work_end(self._claim, Status.FAILED, str(error), code)
        except OSError as error:
            text = f"{error.strerror}: {error.filename or self._folder}"
            work_end(self._claim, Status.FAILED, text, "out_of_disk" if error.errno in _FULL else "failed")
        except ClaimLostError:
            raise
        except (
            Exception
        ) as error:  # whatever it is, who asked must be told, and another attempt may fare better
            logger.exception("%s", self._work)
            self._later(
                _AgainError(f"{type(error).__name__}: {error}"[:500], seconds=_LOST_AGAIN_S, lost=True)
            )

    def _too_long(self) -> None:
        """A job goes on from its last layer; a comparison begins anew, and would never end."""
        if isinstance(self._work, ComparisonRun):
            text = "it takes longer than one attempt may: give it fewer rounds, arms, texts or streams"
            work_end(self._claim, Status.FAILED, text, "too_long", log=log_tail(self._folder))
        else:
            self._later(_AgainError("one attempt may take no longer: another goes on", seconds=1.0))

    def _demand_going_on(self) -> None:
        work = self._work
        if work.cancel_asked_at is not None:
            raise _CancelledError
        if work.lost_attempts >= MOST_LOST:
            raise _FailedError(
                Code.WORKER_FAILED.value,
                f"its process vanished {work.lost_attempts} times in a row, last in phase"
                f" {work.phase or 'start'!r}: the machine may have too little memory. What was finished"
                f" is kept: ask for it again to go on. {work.reason}".rstrip(),
            )

    def _attempt(self) -> None:
        order = order_of(self._work)
        with ExitStack() as held:
            try:
                lock = FileLock(self._folder / "lock")
            except HeldError:
                raise _AgainError("a process of an earlier attempt is still ending", seconds=5.0) from None
            held.callback(lock.close)
            seat = seat_take(order.needs)
            held.callback(seat.close)
            order.prepare(self._folder, self._beat)
            self._begin()
            try:
                arguments = order.arguments(self._folder)
                optimizer = Optimizer.start(
                    arguments,
                    log=self._folder / "log",
                    environment=seat.environment,
                    fds=(lock.fd, *seat.fds),
                )
                told = self._follow(optimizer)
                result = dict(told.last or {})
                order.keep(self._claim, self._folder, result, self._beat)
            finally:
                attempt_end(self._subject)

    def _begin(self) -> None:
        self._subject = attempt_begin(self._claim, host=socket.gethostname())
        self._work = self._claim.row()
        event_add(self._work, "started", f"attempt {self._work.attempts} on {self._work.host}")

    def _follow(self, optimizer: Optimizer) -> Told:
        """Until the process has ended with a result."""
        try:
            while (status := optimizer.ended(within=_TICK_S)) is None:
                self._patiently(self._write, optimizer.told)
        except _CancelledError:
            optimizer.stop()
            raise
        except BaseException:
            optimizer.stop(grace=1.0)
            raise
        self._patiently(self._write_last, optimizer.told)
        return self._judged(optimizer.told, status)

    def _judged(self, told: Told, status: int) -> Told:
        """Raises what a status other than a result means."""
        last = told.last or {}
        if status == 0 and last.get("event") == "result":
            return told
        if last.get("event") != "error":
            raise _AgainError(
                f"its process ended with status {status}, by itself or killed:"
                f" {log_tail(self._folder)[-500:]}",
                seconds=_LOST_AGAIN_S, lost=True,
            )  # fmt: skip
        code, text = str(last["code"]), str(last["message"])
        if code in (Code.OUTPUT_DAMAGED, Code.OUTPUT_EXISTS):
            # The folder is ours alone: what is in it came of a disk that lied, or of other software.
            shutil.rmtree(self._folder / OUTPUT, ignore_errors=True)
            raise _AgainError(f"it begins anew: {text}", seconds=1.0, lost=True)
        if code == Code.BUSY:
            raise _AgainError(text, seconds=5.0)
        if code == Code.CANCELLED:
            raise _AgainError("somebody else ended its process", seconds=_LOST_AGAIN_S, lost=True)
        raise _FailedError(code, text)

    def _write_last(self, told: Told) -> None:
        """What was said last, however soon after what was said before."""
        self._written = 0.0
        self._write(told)

    def _write(self, told: Told) -> None:
        """Keeps the row up to date, at most once a second. Raises _CancelledError when that is asked for."""
        clock = time.monotonic()
        if clock - self._written < _WRITE_S:
            return
        values: dict[str, Any] = {
            "phase": told.phase, "percent": min(max(told.percent, 0.0), 100.0),
            "eta_seconds": told.eta_seconds, "log_tail": log_tail(self._folder),
        }  # fmt: skip
        if told.percent > self._work.percent + _GAINED and self._work.lost_attempts:
            values["lost_attempts"] = 0
        if repr(values) != self._said:
            self._claim.write(**values, progress_at=_now())
            self._said = repr(values)
        self._beat()
        # After the writes: a look at the clock alone would pass for a database that is back.
        self._written = clock

    def _beat(self) -> None:
        """Says that this attempt lives, and sees whether it is still wanted."""
        self._claim.renew()
        clock = time.monotonic()
        if clock - self._beaten < _WRITE_S:
            return
        attempt_seen(self._subject)
        if self._claim.row().cancel_asked_at is not None:
            raise _CancelledError
        self._beaten = clock

    def _later(self, error: NoRoomYetError | _AgainError) -> None:
        """Lets another attempt go on, here or on another host."""
        lost = isinstance(error, _AgainError) and error.lost
        work = self._claim.row()
        if work.cancel_asked_at is not None:
            work_end(self._claim, Status.CANCELLED, "cancelled", "")
            return
        if work.reason != str(error):
            event_add(work, "lost" if lost else "waits", str(error))
        self._claim.release(
            status=Status.WAITING, reason=str(error), next_at=_now(error.seconds),
            lost_attempts=work.lost_attempts + lost,
        )  # fmt: skip


def _now(seconds: float = 0.0) -> dt.datetime:
    return timezone.now() + dt.timedelta(seconds=seconds)
