"""Unsuccessful ends of work: cancelled, killed, taken over, no room, damaged, unreachable."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
from django.db import connection
from django.utils import timezone
from pytest_django import Settings

from controlplane.catalog.models import BaseModel, Variant
from controlplane.optimization import admission, subprocesses
from controlplane.optimization.attempt import work_run
from controlplane.optimization.claims import Claim, ClaimLostError
from controlplane.optimization.models import Artifact, Attempt, OptimizationJob
from controlplane.optimization.queueing import works_sweep
from controlplane.optimization.selectors import event_list
from controlplane.optimization.services import work_cancel
from controlplane.optimization.workspace import FileLock, HeldError, host_lock, work_folder
from tests.controlplane.optimization.conftest import Ask
from tests.waiting import eventually

STANDIN = """
import json, os, signal, sys, time
def say(event, **more):
    print(json.dumps({"event": event, "time": time.time(), **more}), flush=True)
def log(text):
    with open(os.path.join(OUT, "acts"), "a") as acts:
        acts.write(text + "\\n")
OUT = sys.argv[sys.argv.index("--output") + 1]
os.makedirs(OUT, exist_ok=True)
say("phase", phase="checkpoint", step=1, steps=1)
"""
"""What speaks the protocol, and ends as a test wants: the real one cannot be made to hang or to damage."""


@pytest.fixture
def act(settings: Settings, tmp_path: Path) -> Callable[[str], None]:
    """Has the subprocess be a program of a few lines."""

    def be(lines: str) -> None:
        script = tmp_path / "standin.py"
        script.write_text(STANDIN + lines)
        python = tmp_path / "python"
        # `python -m optimizer run ...` without its first two arguments.
        python.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} {script} "$@"\n')
        python.chmod(0o755)
        settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, optimization_python=str(python))

    return be


def run(job: OptimizationJob) -> OptimizationJob:
    work_run(kind="job", pk=job.pk)
    job.refresh_from_db()
    return job


def error(code: str, message: str = "why") -> str:
    return (
        f'say("error", code="{code}", message="{message}", resumable=False, reasons=[])\n'
        'log("ran")\nsys.exit(1)\n'
    )


Act = Callable[[str], None]


@pytest.mark.django_db
@pytest.mark.parametrize(
    "code", ["bad_data", "unsupported_model", "out_of_disk", "source_changed", "incompatible"]
)
def test_an_error_is_the_jobs_end_with_its_code_and_message(
    tiny_base: BaseModel, ask: Ask, act: Act, code: str
) -> None:
    act(error(code, "prompts.jsonl, line 7: is not JSON"))
    job = run(ask(tiny_base))
    assert (job.status, job.error_code, job.reason) == ("failed", code, "prompts.jsonl, line 7: is not JSON")
    assert job.ended_at is not None
    assert not Artifact.objects.exists()
    assert not Variant.objects.exists()
    assert job.lease_owner == ""


@pytest.mark.costly("starts optimizer processes")
@pytest.mark.django_db
def test_the_real_one_refuses_a_model_that_it_does_not_serve(tiny_base: BaseModel, ask: Ask) -> None:
    """The small base has no tokenizer and no real config: the real subprocess says so."""
    job = run(ask(tiny_base))
    assert job.status == "failed"
    assert job.error_code in ("unsupported_model", "failed", "bad_order")
    assert job.reason


@pytest.mark.costly("starts optimizer processes")
@pytest.mark.django_db
def test_a_process_that_vanishes_is_started_again_three_times_at_most(
    tiny_base: BaseModel, ask: Ask, act: Act
) -> None:
    act("os.kill(os.getpid(), signal.SIGKILL)")
    job = ask(tiny_base)
    for attempt in (1, 2, 3):
        run(job)
        assert (job.status, job.attempts, job.lost_attempts) == ("waiting", attempt, attempt)
        assert "ended with status -9" in job.reason
        assert job.next_at > timezone.now()
    run(job)
    assert (job.status, job.error_code, job.attempts) == ("failed", "worker_failed", 3)
    assert "vanished 3 times in a row, last in phase 'checkpoint'" in job.reason
    assert Attempt.objects.filter(ended_at=None).count() == 0


@pytest.mark.django_db
def test_progress_forgives_lost_attempts(tiny_base: BaseModel, ask: Ask, act: Act) -> None:
    # It dies once its progress was written, at most a second after it was said.
    act(
        'say("progress", phase="checkpoint", percent=40.0, eta_seconds=3.0, message="")\n'
        "time.sleep(1.5)\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    job = ask(tiny_base)
    OptimizationJob.objects.update(lost_attempts=2)
    run(job)
    assert (job.status, job.lost_attempts, job.percent, job.phase) == ("waiting", 1, 40.0, "checkpoint")


@pytest.mark.django_db
@pytest.mark.parametrize("code", ["output_damaged", "output_exists"])
def test_a_damaged_folder_is_made_anew(tiny_base: BaseModel, ask: Ask, act: Act, code: str) -> None:
    act(error(code))
    job = run(ask(tiny_base))
    assert (job.status, "it starts over" in job.reason) == ("waiting", True)
    assert not (work_folder(job) / "output").exists()


@pytest.mark.django_db
def test_what_others_said_on_stdout_belongs_to_the_log(tiny_base: BaseModel, ask: Ask, act: Act) -> None:
    act('print("a library speaks \\0")\nprint("x" * 20000)\n' + error("failed"))
    job = run(ask(tiny_base))
    assert "error failed: why" in job.log_tail
    assert "\0" not in job.log_tail
    assert len(job.log_tail) <= 8192


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("patch", "status", "code", "says"),
    [
        ({"WEIGHTS_ON_DISK": 1e9}, "failed", "no_room", "GiB of disk"),
        ({"WEIGHTS_IN_MEMORY": 1e9}, "failed", "no_room", "GiB of memory, and this host has"),
    ],
)
def test_what_never_fits_is_refused(
    tiny_base: BaseModel,
    ask: Ask,
    monkeypatch: pytest.MonkeyPatch,
    patch: dict[str, float],
    status: str,
    code: str,
    says: str,
) -> None:
    for name, value in patch.items():
        monkeypatch.setattr(admission, name, value)
    monkeypatch.setattr("controlplane.optimization.orders.weights_bytes", lambda base: 1 << 20)
    job = run(ask(tiny_base))
    assert (job.status, job.error_code, says in job.reason, job.attempts) == (status, code, True, 0)


@pytest.mark.django_db
def test_what_does_not_fit_now_waits(
    tiny_base: BaseModel, ask: Ask, act: Act, monkeypatch: pytest.MonkeyPatch, optimization_dir: Path
) -> None:
    monkeypatch.setattr(admission, "_memory", lambda: (1 << 20, 1 << 50))
    job = run(ask(tiny_base))
    assert (job.status, job.attempts) == ("waiting", 0)
    assert "GiB of memory, and this host has 0.0 free" in job.reason
    monkeypatch.undo()
    lock = host_lock("cpu")
    run(job)
    assert "another job uses this host's CPU" in job.reason
    lock.close()
    assert works_sweep() == 0
    OptimizationJob.objects.update(next_at=timezone.now())
    assert works_sweep() == 1
    assert works_sweep() == 0
    # The same reason said again is no new event.
    assert [event.event for event in event_list(work=job)] == ["waits", "waits", "asked"]


def test_a_lock_is_held_by_whom_it_was_handed_to(act: Act, tmp_path: Path) -> None:
    """The case of a Celery worker that was killed."""
    act("time.sleep(120)\n")  # until it is ended
    lock = FileLock(tmp_path / "lock")
    arguments = ["run", "order", "--output", str(tmp_path / "output")]
    optimizer = subprocesses.Optimizer.start(arguments, log=tmp_path / "said", environment={}, fds=(lock.fd,))
    lock.close()
    with pytest.raises(HeldError):
        FileLock(tmp_path / "lock")
    optimizer.stop(grace=5.0)
    FileLock(tmp_path / "lock").close()


def test_a_process_is_told_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "GRAFTWORK_SECRET_KEY",
        "GRAFTWORK_DATABASE_URL",
        "GRAFTWORK_FLEET_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
    ):
        monkeypatch.setenv(name, "kept")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert "kept" not in subprocesses.child_environment().values()
    assert subprocesses.child_environment()["OMP_NUM_THREADS"] == "2"


@pytest.mark.django_db
def test_who_slept_through_its_lease_changes_nothing(tiny_base: BaseModel, ask: Ask) -> None:
    job = ask(tiny_base)
    sleeper = Claim.take(kind="job", pk=job.pk)
    assert sleeper is not None
    assert Claim.take(kind="job", pk=job.pk) is None
    OptimizationJob.objects.update(lease_until=timezone.now() - timedelta(seconds=1))
    other = Claim.take(kind="job", pk=job.pk)
    assert other is not None
    with pytest.raises(ClaimLostError):
        sleeper.write(percent=99.0)
    sleeper.release(status="done")
    job.refresh_from_db()
    assert (job.percent, job.status, job.lost_attempts) == (0.0, "queued", 1)


def in_a_thread(job: OptimizationJob) -> threading.Thread:
    def attempt() -> None:
        try:
            work_run(kind="job", pk=job.pk)
        finally:
            connection.close()

    thread = threading.Thread(target=attempt)
    thread.start()
    return thread


def wait_for(job: OptimizationJob, holds: Callable[[OptimizationJob], Any], seconds: float = 60.0) -> None:
    def is_reached() -> bool:
        job.refresh_from_db()
        return bool(holds(job))

    eventually(is_reached, seconds=seconds, message=lambda: f"{job.status} {job.reason} {job.log_tail}")


def children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "standin.py" in " ".join(child.cmdline())]


@pytest.mark.parametrize("deaf", [False, True])
def test_cancel_asks_the_process_and_kills_one_that_does_not_hear(
    transactional_db: None,
    tiny_base: BaseModel,
    ask: Ask,
    act: Act,
    monkeypatch: pytest.MonkeyPatch,
    deaf: bool,
) -> None:
    monkeypatch.setattr(subprocesses.Optimizer.stop, "__kwdefaults__", {"grace": 2.0})
    hears = (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
        if deaf
        else ('signal.signal(signal.SIGTERM, lambda *a: (log("asked"), sys.exit(14)))')
    )
    act(f"{hears}\nlog('ready')\ntime.sleep(120)\n")  # until it is ended
    job = ask(tiny_base)
    thread = in_a_thread(job)
    wait_for(job, lambda job: job.phase == "checkpoint")
    (child,) = children()
    began = time.monotonic()
    work_cancel(work=job)
    thread.join(30)
    job.refresh_from_db()
    assert (job.status, job.reason, job.lease_owner) == ("cancelled", "cancelled", "")
    assert not deaf or time.monotonic() - began > 2.0
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    acts = (work_folder(job) / "output" / "acts").read_text().split()
    assert acts == (["ready"] if deaf else ["ready", "asked"])


@pytest.mark.costly("starts optimizer processes")
def test_while_a_dead_workers_process_lives_nobody_works_beside_it(
    transactional_db: None, tiny_base: BaseModel, ask: Ask, act: Act
) -> None:
    """The lock went with the process: only its end lets the next attempt in."""
    # Deaf, so that on a busy machine too it is there when the next attempt looks.
    act("signal.signal(signal.SIGTERM, signal.SIG_IGN)\nlog('first')\ntime.sleep(120)\n")  # until it is ended
    job = ask(tiny_base)
    thread = in_a_thread(job)
    wait_for(job, lambda job: job.phase == "checkpoint")
    OptimizationJob.objects.update(lease_owner="another", lease_until=timezone.now() - timedelta(seconds=1))
    run(job)
    assert (job.status, job.reason) == ("waiting", "a process of an earlier attempt is still ending")
    thread.join(30)
    assert children() == []
    act(error("failed"))
    run(job)
    assert (job.status, (work_folder(job) / "output" / "acts").read_text().split()) == (
        "failed",
        ["first", "ran"],
    )


@pytest.mark.costly("starts optimizer processes")
def test_a_killed_celery_process_is_followed_by_another_that_goes_on(
    transactional_db: None, demo_base: BaseModel, ask: Ask, start: Any, tmp_path: Path, optimization_dir: Path
) -> None:
    """A real Celery worker, killed with its pool in the middle of the copy; the lease runs out; a second one
    finds the same folder and finishes."""
    job = ask(demo_base)
    arguments = ("-m", "celery", "-A", "controlplane.celery", "worker", "-Q", "graftwork.optimize.cpu")
    more = {"GRAFTWORK_OPTIMIZATION_DIR": str(optimization_dir)}
    first = start(*arguments, "-n", "first@%h", "--concurrency", "1", "--loglevel", "INFO", **more)
    OptimizationJob.objects.update(next_at=timezone.now())
    works_sweep()
    wait_for(job, lambda job: job.status == "running" and (work_folder(job) / "output").exists(), seconds=120)
    family = [psutil.Process(first.pid), *psutil.Process(first.pid).children(recursive=True)]
    for process in family:
        if "optimizer" not in process.cmdline():
            os.kill(process.pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(family, timeout=30)
    # Nobody read what it said any more, and that ended it.
    assert alive == []
    job.refresh_from_db()
    assert (job.status, Variant.objects.count()) == ("running", 0)
    assert works_sweep() == 0
    OptimizationJob.objects.update(lease_until=timezone.now(), next_at=timezone.now())
    assert works_sweep() == 1
    start(*arguments, "-n", "second@%h", "--concurrency", "1", "--loglevel", "INFO", **more)
    wait_for(job, lambda job: not job.is_open, seconds=150)
    assert (job.status, job.attempts, job.lost_attempts) == ("done", 2, 0), job.reason
    assert Variant.objects.get().source.endswith("/checkpoint")
    assert json.loads(json.dumps(job.lineage))["attempts"] == 2
    assert [event.event for event in event_list(work=job)][::-1] == [
        "asked",
        "started",
        "lost",
        "started",
        "done",
    ]
