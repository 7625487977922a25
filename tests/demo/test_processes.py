"""Processes start, are watched, and none outlives the supervisor, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from controlplane.deployments.provisioners.local.engines.worker import inherited_environment
from controlplane.deployments.provisioners.local.processes import start_detached
from controlplane.optimization.subprocesses import child_environment
from demo import reaper
from demo.errors import ProcessDiedError
from demo.processes import Processes
from tests.waiting import eventually

pytestmark = pytest.mark.costly("starts and ends processes")

# Processes below sleep until a test ends them.
FOREVER = "import time; time.sleep(600)"
# This one has a child in a session of its own, which ignores SIGTERM: the worst to get rid of.
STUBBORN = """
import signal, subprocess, sys, time
inner = '''
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(600)
'''
child = subprocess.Popen([sys.executable, "-c", inner], start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""
SUPERVISOR = """
import os, sys, time
from pathlib import Path
from demo.processes import Processes
lock = os.open(sys.argv[1] + "/lock", os.O_CREAT | os.O_RDWR)
processes = Processes({}, logs=Path(sys.argv[1]), lock=lock)
processes.start("stubborn", [sys.executable, "-c", sys.argv[2]])
print(processes.pid("stubborn"), flush=True)
time.sleep(600)
"""


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with (
        (tmp_path / "lock").open("w") as lock,
        Processes({"COLOUR": "red"}, logs=tmp_path, lock=lock.fileno(), grace=1.0) as started,
    ):
        yield started


def test_a_process_gets_the_environment_and_a_log(processes: Processes) -> None:
    code = "import os; print(os.environ['COLOUR'], os.environ['SIZE'], os.environ['GRAFTWORK_DEMO_RUN'])"
    processes.start("show", [sys.executable, "-c", code], SIZE="9")
    processes.finish("show", timeout=30)
    assert processes.log("show").read_text().startswith("red 9 ")


def test_a_dead_process_is_named_with_its_last_words(processes: Processes) -> None:
    processes.start("brave", [sys.executable, "-c", FOREVER])
    processes.start("frail", [sys.executable, "-c", "import sys; print('no bread'); sys.exit(3)"])
    with pytest.raises(ProcessDiedError, match=r"frail ended with status 3; (?s:.*)no bread"):
        processes.wait_ready({"brave": lambda: False}, timeout=30, on_ready=lambda _: None)


def test_a_process_that_was_killed_is_named_with_the_signal(processes: Processes) -> None:
    processes.start("brave", [sys.executable, "-c", FOREVER])
    os.kill(processes.pid("brave"), signal.SIGKILL)
    with pytest.raises(ProcessDiedError, match="brave ended by SIGKILL"):
        processes.wait_ready({"brave": lambda: False}, timeout=30, on_ready=lambda _: None)


def test_a_process_that_never_gets_ready_is_named(processes: Processes) -> None:
    processes.start("slow", [sys.executable, "-c", FOREVER])
    with pytest.raises(ProcessDiedError, match="slow is not ready after 0 s"):
        processes.wait_ready({"slow": lambda: False}, timeout=0.2, on_ready=lambda _: None)


def test_close_ends_grandchildren_that_ignore_it(processes: Processes) -> None:
    processes.start("stubborn", [sys.executable, "-c", STUBBORN])
    pids = [processes.pid("stubborn"), _first_number(processes.log("stubborn"), "up")]
    processes.close()
    assert not [pid for pid in pids if _runs(pid)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_a_task_started_detached_ends_with_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """A deployment's copies have a filtered environment and no parent of ours; some sleep stopped."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv(reaper.MARK, mark)
    for environment in (inherited_environment(), child_environment()):
        command = [sys.executable, "-c", FOREVER]
        start_detached(command, log=tmp_path / "log", environment=environment, cwd=tmp_path)
    eventually(lambda: len(reaper.processes_of(mark)) == 2, message="both run")
    if number == signal.SIGKILL:
        for process in reaper.processes_of(mark):
            process.suspend()
    reaper.end(mark, grace=0.1 if number == signal.SIGKILL else 10.0)
    assert reaper.processes_of(mark) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_a_killed_supervisor(tmp_path: Path, number: signal.Signals) -> None:
    supervisor = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(tmp_path), STUBBORN], stdout=subprocess.PIPE
    )
    assert supervisor.stdout is not None
    with supervisor.stdout:
        child = int(supervisor.stdout.readline())
    pids = [child, _first_number(tmp_path / "stubborn.log", "up")]
    assert all(_runs(pid) for pid in pids)
    supervisor.send_signal(number)
    supervisor.wait(10)
    eventually(lambda: not any(_runs(pid) for pid in pids), message="nothing outlives the supervisor")


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _first_number(log: Path, word: str) -> int:
    """Return the number on the log's first line, once the log contains `word`."""
    eventually(lambda: log.exists() and word in log.read_text(), message=f"{log} says {word}")
    return int(next(line for line in log.read_text().splitlines() if line.isdigit()))
