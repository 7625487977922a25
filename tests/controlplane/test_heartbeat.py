"""A Celery worker's health check reads its heartbeat file and sends no request."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from celery.events.dispatcher import EventDispatcher
from celery.worker.heartbeat import Heart
from pytest_django import Settings

from controlplane.platform.celery import app
from tests.conftest import ROOT
from tests.controlplane.conftest import Start
from tests.waiting import eventually

CHECK = ("deploy/docker/health.py", "worker")


def check(file: Path) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "GRAFTWORK_HEARTBEAT_FILE": str(file)}
    return subprocess.run([sys.executable, *CHECK], env=env, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.costly("starts a Celery worker and its health checks")
def test_a_worker_that_goes_round_is_healthy_and_one_that_hangs_is_not(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "heartbeat"
    assert check(file).returncode == 1, "a worker that never came up"
    file.write_text("of one that died a moment ago")
    command = ("-m", "celery", "-A", "controlplane.celery", "worker", "--pool", "solo")
    worker = start(*command, GRAFTWORK_HEARTBEAT_FILE=str(file))
    log = tmp_path / "log"
    # The worker's own is empty.
    eventually(lambda: file.exists() and not file.read_text(), message=lambda: log.read_text()[-3000:])
    assert check(file).returncode == 0
    os.utime(file, (0, 0))
    eventually(lambda: check(file).returncode == 0, message="it does not go on touching it")
    worker.send_signal(signal.SIGSTOP)
    past = time.time() - 3000
    os.utime(file, (past, past))
    time.sleep(3)  # Longer than a heartbeat's interval: a worker that went on would touch the file.
    sick = check(file)
    assert (sick.returncode, "worker was 3" in sick.stdout) == (1, True), sick
    worker.send_signal(signal.SIGCONT)


def test_heartbeats_that_the_broker_refuses_do_not_count(settings: Settings, tmp_path: Path) -> None:
    file = tmp_path / "heartbeat"
    app.conf.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, heartbeat_file=file)
    dispatcher = EventDispatcher(app=app, enabled=False, hostname="worker", groups=["worker"])
    published: list[object] = []

    class Full:
        def publish(self, *arguments: object, **_: object) -> None:
            published.append(arguments)
            if len(published) == 1:
                raise OSError("OOM command not allowed when used memory > 'maxmemory'")

    dispatcher.producer, dispatcher.enabled = Full(), True
    heart = Heart(None, dispatcher)
    try:
        heart._send("worker-heartbeat")
        file.unlink(missing_ok=True)  # the first comes before anything is known
        heart._send("worker-heartbeat")
        assert not file.exists(), "one waits in the buffer"
        dispatcher.flush()
        heart._send("worker-heartbeat")
        assert file.exists()
    finally:
        app.conf.GRAFTWORK = settings.GRAFTWORK
