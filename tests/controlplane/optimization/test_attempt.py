"""An attempt among what goes wrong around it: words that no database takes, a full disk, a late cancel."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded
from django.db import OperationalError
from django.utils import timezone
from pytest_django import Settings

from controlplane.catalog.models import BaseModel
from controlplane.optimization import admission, attempt
from controlplane.optimization.attempt import work_run
from controlplane.optimization.claims import Claim
from controlplane.optimization.comparisons import comparison_create
from controlplane.optimization.database_patience import DatabasePatience
from controlplane.optimization.models import Attempt, ComparisonRun, OptimizationJob
from controlplane.optimization.orders import ComparisonOrder
from controlplane.optimization.selectors import event_list
from controlplane.optimization.services import work_cancel
from controlplane.optimization.workspace import work_folder
from tests.controlplane.optimization.conftest import Ask
from tests.controlplane.optimization.test_endings import STANDIN

pytestmark = pytest.mark.django_db
Speak = Callable[[str], None]


@pytest.fixture
def speak(settings: Settings, tmp_path: Path) -> Speak:
    """Has the subprocess be a program of a few lines, which speaks the protocol."""

    def be(lines: str) -> None:
        script, python = tmp_path / "speaker.py", tmp_path / "python"
        script.write_text(STANDIN + lines)
        python.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} {script} "$@"\n')
        python.chmod(0o755)
        settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, optimization_python=str(python))

    return be


def run(job: OptimizationJob) -> OptimizationJob:
    work_run(kind="job", pk=job.pk)
    job.refresh_from_db()
    return job


@pytest.fixture
def comparison(tiny_base: BaseModel) -> ComparisonRun:
    made, _ = comparison_create(
        base_model=tiny_base, arms=[{"variant": ""}, {"variant": "", "name": "again"}]
    )
    return made


FAILS = 'say("error", code="failed", message={message}, resumable=False, reasons=[])\nsys.exit(1)\n'


def test_a_message_may_be_of_any_characters(tiny_base: BaseModel, ask: Ask, speak: Speak) -> None:
    speak(FAILS.format(message='"a \\0 and \\udc80 of a path"'))
    job = run(ask(tiny_base))
    assert (job.status, job.error_code, job.reason) == ("failed", "failed", "a \ufffd and ? of a path")


def test_a_result_is_kept_whatever_the_models_said(comparison: ComparisonRun) -> None:
    """PostgreSQL's JSON has no NUL, no half of a character and no NaN; a broken arm may give all three."""
    folder = work_folder(comparison)
    folder.mkdir(parents=True)
    answers = {"original": "fine", "again": "a \0 b \ud800"}
    told = {"quality": {"samples": [{"answers": answers}], "arms": {"again": {"kl_mean": float("nan")}}}}
    (folder / "measured.json").write_text(json.dumps(told))
    claim = Claim.take(kind="comparison", pk=comparison.pk)
    assert claim is not None
    ComparisonOrder(comparison).keep(claim, folder, {}, lambda: None)
    comparison.refresh_from_db()
    assert comparison.result is not None
    quality = comparison.result["quality"]
    assert quality["samples"][0]["answers"] == {"original": "fine", "again": "a \ufffd b ?"}
    assert quality["arms"]["again"]["kl_mean"] is None
    assert comparison.status == "done"


class Full(BytesIO):
    """A file on a disk without room."""

    def write(self, data: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_log_without_room_does_not_silence_the_process(
    tiny_base: BaseModel, ask: Ask, speak: Speak, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Path.open

    def full(path: Path, *args: Any, **more: Any) -> Any:
        reads = threading.current_thread().name == "optimizer-progress"
        return Full() if reads else opened(path, *args, **more)

    monkeypatch.setattr(Path, "open", full)
    speak("say('log', level='info', message='a word')\n" + FAILS.format(message='"the last word"'))
    job = run(ask(tiny_base))
    assert (job.status, job.reason) == ("failed", "the last word")


def test_what_nobody_thought_of_is_told_and_ends_the_third_time(
    tiny_base: BaseModel, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(needs: admission.Needs) -> admission.Seat:
        raise KeyError("MemAvailable")

    monkeypatch.setattr(attempt, "seat_take", breaks)
    job = ask(tiny_base)
    for lost in (1, 2, 3):
        run(job)
        assert (job.status, job.reason, job.lost_attempts) == ("waiting", "KeyError: 'MemAvailable'", lost)
        assert job.lease_owner == ""
    run(job)
    assert (job.status, job.error_code) == ("failed", "worker_failed")
    assert job.reason.endswith("KeyError: 'MemAvailable'")


def test_a_cancel_that_comes_while_room_is_looked_for_is_the_end(
    tiny_base: BaseModel, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = ask(tiny_base)

    def cancelled_meanwhile(needs: admission.Needs) -> admission.Seat:
        work_cancel(work=job)
        raise admission.NoRoomYetError("others have it")

    monkeypatch.setattr(attempt, "seat_take", cancelled_meanwhile)
    run(job)
    assert (job.status, job.reason, job.lease_owner) == ("cancelled", "cancelled", "")


def test_a_work_whose_host_died_is_cancelled_without_another(tiny_base: BaseModel, ask: Ask) -> None:
    job = ask(tiny_base)
    claim = Claim.take(kind="job", pk=job.pk)
    assert claim is not None
    claim.write(status="running", attempts=1)
    now = timezone.now()
    Attempt.objects.create(
        subject=f"job-{job.pk}.1", base_model="b", machine="cpu", host="h", started_at=now, seen_at=now
    )
    work_cancel(work=job)
    job.refresh_from_db()
    assert job.status == "cancelling"
    OptimizationJob.objects.update(lease_until=now - timedelta(seconds=1))
    work_cancel(work=job)
    job.refresh_from_db()
    assert (job.status, job.lease_owner, job.ended_at is not None) == ("cancelled", "", True)
    assert not Attempt.objects.filter(ended_at=None).exists()
    assert [event.event for event in event_list(work=job)][::-1] == ["asked", "cancel", "lost", "cancel"]


def test_an_attempt_that_takes_too_long_ends_a_comparison_and_not_a_job(
    tiny_base: BaseModel, ask: Ask, comparison: ComparisonRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A comparison starts from the beginning each time."""

    def too_long(needs: admission.Needs) -> admission.Seat:
        raise SoftTimeLimitExceeded

    monkeypatch.setattr(attempt, "seat_take", too_long)
    assert run(ask(tiny_base)).status == "waiting"
    work_run(kind="comparison", pk=comparison.pk)
    comparison.refresh_from_db()
    assert (comparison.status, comparison.error_code) == ("failed", "too_long")


def away(times: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The database fails the next writes of progress so often; what was written afterwards."""
    written, real = list[str](), Claim.write
    left = [times]

    def write(claim: Claim, **values: Any) -> None:
        if "log_tail" in values and left[0]:
            left[0] -= 1
            raise OperationalError("the server closed the connection unexpectedly")
        written.append(str(values.get("phase", "")))
        real(claim, **values)

    monkeypatch.setattr(Claim, "write", write)
    return written


def test_a_database_that_is_away_for_a_moment_ends_nothing(
    tiny_base: BaseModel, ask: Ask, speak: Speak, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "_WRITE_S", 0.0)
    # Long enough for the two writes that fail before its last word.
    speak("time.sleep(2)\n" + FAILS.format(message='"the last word"'))
    written = away(2, monkeypatch)
    job = run(ask(tiny_base))
    assert (job.status, job.reason, job.attempts) == ("failed", "the last word", 1)
    assert "checkpoint" in written


def test_one_that_stays_away_ends_the_attempt_and_its_process(
    tiny_base: BaseModel, ask: Ask, speak: Speak, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "_WRITE_S", 0.0)
    monkeypatch.setattr(attempt, "DatabasePatience", lambda: DatabasePatience(0.0))
    speak("time.sleep(120)\n")  # until it is ended
    away(10_000, monkeypatch)
    job = run(ask(tiny_base))
    assert (job.status, job.lost_attempts) == ("waiting", 1)
    assert "closed the connection" in job.reason


def test_patience_runs_out_between_two_writes(
    tiny_base: BaseModel, ask: Ask, speak: Speak, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looks that write nothing, as it is not time yet, say nothing of the database."""
    monkeypatch.setattr(attempt, "DatabasePatience", lambda: DatabasePatience(0.5))
    speak("time.sleep(60)\n")  # until it is ended
    away(10_000, monkeypatch)
    job = run(ask(tiny_base))
    assert (job.status, job.lost_attempts) == ("waiting", 1)
    assert "closed the connection" in job.reason
