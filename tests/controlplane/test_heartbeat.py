"""A Celery worker's health is seen by its heartbeat file, by a check that asks nobody."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.conftest import ROOT
from tests.controlplane.conftest import Start

CHECK = ("deploy/docker/health.py", "worker")


def check(file: Path) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "GRAFTWORK_HEARTBEAT_FILE": str(file)}
    return subprocess.run([sys.executable, *CHECK], env=env, cwd=ROOT, capture_output=True, text=True)


def test_a_worker_that_goes_round_is_healthy_and_one_that_hangs_is_not(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "heartbeat"
    assert check(file).returncode == 1, "a worker that never came up"
    command = ("-m", "celery", "-A", "controlplane.celery", "worker", "--pool", "solo")
    worker = start(*command, GRAFTWORK_HEARTBEAT_FILE=str(file))
    until = time.monotonic() + 60
    while not file.exists():
        assert time.monotonic() < until, (tmp_path / "log").read_text()[-3000:]
        time.sleep(0.1)
    assert check(file).returncode == 0
    os.utime(file, (0, 0))
    while check(file).returncode:
        assert time.monotonic() < until, "it does not go on touching it"
        time.sleep(0.2)
    worker.send_signal(signal.SIGSTOP)
    past = time.time() - 31
    os.utime(file, (past, past))
    time.sleep(3)
    sick = check(file)
    assert (sick.returncode, "last heard 3" in sick.stdout) == (1, True), sick
    worker.send_signal(signal.SIGCONT)
