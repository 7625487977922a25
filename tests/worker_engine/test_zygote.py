"""Workers forked from a warm zygote: real processes, as if they had been started by themselves."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import stop
from tests.waiting import eventually
from tests.worker_engine.test_process import stream_of
from tests.worker_process import Worker, run_worker, worker_environment
from worker_engine.zygote.handover import VARIABLE
from worker_engine.zygote.order import Order, code_digest, differing
from worker_engine.zygote.tokenizers import Tokenizers

pytestmark = pytest.mark.costly("starts workers from cold")

ENVIRONMENT = worker_environment(from_cold=True)


@contextlib.contextmanager
def zygote(folder: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """The process and its socket, once it takes orders."""
    path = folder / "socket"
    command = [sys.executable, "-m", "worker_engine.zygote", str(path), *flags]
    with (folder / "zygote.log").open("wb") as log:
        process = subprocess.Popen(command, env=ENVIRONMENT, stdout=log, stderr=log)
    try:
        eventually(lambda: path.exists() or process.poll() is not None, seconds=300)
        assert process.poll() is None, (folder / "zygote.log").read_text()
        yield process, path
    finally:
        stop(process)


@pytest.fixture(scope="module")
def warm(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with zygote(tmp_path_factory.mktemp("zygote"), "--model", str(tiny_model)) as (_, path):
        yield path


def kind_of(worker: Worker) -> str:
    return str(worker.call("/health")[1]["startup"]["kind"])


def test_copies_of_a_zygote_serve_side_by_side(warm: Path, tiny_model: Path, tmp_path: Path) -> None:
    """Each with its own port, log and cache; and in the answer, what a worker by itself says."""
    (one := tmp_path / "one").mkdir()
    (two := tmp_path / "two").mkdir()
    (alone := tmp_path / "alone").mkdir()
    variables = {VARIABLE: str(warm)}
    with (
        run_worker(tiny_model, one, from_cold=True, variables=variables) as first,
        run_worker(tiny_model, two, from_cold=True, variables=variables) as second,
        run_worker(tiny_model, alone, from_cold=True) as fresh,
    ):
        assert [kind_of(worker) for worker in (first, second, fresh)] == ["template", "template", "fresh"]
        said = [worker.complete(temperature=0)[1]["choices"] for worker in (first, second, fresh)]
        assert said[0] == said[1] == said[2]
        ids = [worker.complete(max_tokens=200, temperature=1)[1]["choices"] for worker in (first, second)]
        assert ids[0] != ids[1], "copies draw the same random numbers"
    assert "serving on" in (one / "log").read_text()


def test_signals_and_the_exit_status_go_through(warm: Path, tiny_model: Path, tmp_path: Path) -> None:
    with run_worker(tiny_model, tmp_path, from_cold=True, variables={VARIABLE: str(warm)}) as worker:
        with stream_of(worker, max_tokens=100) as answer:
            answer.read(100)
            worker.process.send_signal(signal.SIGTERM)
            assert answer.read().endswith(b"data: [DONE]\n\n"), "SIGTERM drains"
        assert worker.process.wait(60) == 0
    refused = [sys.executable, "-m", "worker_engine", "--model", "m", "--served-model-name", ""]
    done = subprocess.run(refused, env=ENVIRONMENT | {VARIABLE: str(warm)}, capture_output=True, text=True)
    assert done.returncode == 2
    assert "--served-model-name must not be empty" in done.stderr


def listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def test_a_worker_whose_stand_in_is_killed_ends(warm: Path, tiny_model: Path, tmp_path: Path) -> None:
    with run_worker(tiny_model, tmp_path, from_cold=True, variables={VARIABLE: str(warm)}) as worker:
        assert kind_of(worker) == "template"
        worker.process.kill()
        worker.process.wait(30)
        eventually(lambda: not listening(worker.port), seconds=30)


def test_without_a_zygote_that_fits_a_worker_starts_by_itself(
    warm: Path, tiny_model: Path, tmp_path: Path
) -> None:
    cases = (
        ({VARIABLE: str(tmp_path / "nothing")}, "No such file"),
        ({VARIABLE: str(warm), "OMP_NUM_THREADS": "2"}, "OMP_NUM_THREADS: not as the zygote was started"),
    )
    for variables, reason in cases:
        with run_worker(tiny_model, tmp_path, from_cold=True, variables=variables) as worker:
            assert kind_of(worker) == "fresh"
        assert reason in (tmp_path / "log").read_text()


def test_a_zygote_lets_its_workers_end_first(tiny_model: Path, tmp_path: Path) -> None:
    """Told to stop, it takes no orders and waits, so that every stand-in learns how its worker ended."""
    with zygote(tmp_path) as (process, path):
        (folder := tmp_path / "worker").mkdir()
        with run_worker(tiny_model, folder, from_cold=True, variables={VARIABLE: str(path)}) as worker:
            process.send_signal(signal.SIGTERM)
            eventually(lambda: not path.exists(), seconds=30)
            assert worker.complete()[0] == 200
            assert process.poll() is None
            worker.process.send_signal(signal.SIGTERM)
            assert worker.process.wait(60) == 0
        assert process.wait(30) == 0


def test_a_killed_zygote_leaves_its_workers(tiny_model: Path, tmp_path: Path) -> None:
    with zygote(tmp_path) as (process, path):
        (folder := tmp_path / "worker").mkdir()
        with run_worker(tiny_model, folder, from_cold=True, variables={VARIABLE: str(path)}) as worker:
            process.kill()
            process.wait(30)
            assert worker.complete()[0] == 200
            worker.process.send_signal(signal.SIGTERM)
            assert worker.process.wait(60) == 1, "nobody knows how it ended"
            assert not listening(worker.port)
        assert "is gone" in (folder / "log").read_text()


def test_nonsense_on_the_socket_is_refused(warm: Path) -> None:
    """And the zygote goes on: other tests use it after this one."""
    order = Order([], dict(ENVIRONMENT), "/", [0], 0o22, code_digest(), 0.0)
    other = Order([], dict(ENVIRONMENT), "/", [0], 0o22, "of other code", 0.0)
    for message, reason in (
        (b"\xff", "Expecting value"),
        (b"[1]", ""),
        (b"{}", "no order"),
        (order.encode(), "streams"),
        (other.encode(), "other code"),
    ):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(30)
            connection.connect(str(warm))
            connection.send(message)
            assert reason in json.loads(connection.recv(1 << 16))["refused"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(str(warm))


def test_a_tokenizer_is_the_held_one_while_its_files_stay(tiny_model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    tokenizers = Tokenizers([folder])
    held = tokenizers.get(folder)
    assert held is not None
    assert tokenizers.get(tmp_path / "." / "model") is held
    assert tokenizers.get(tiny_model) is None
    (folder / "chat_template.jinja").write_text("another")
    assert tokenizers.get(folder) is None


def test_variables_that_are_read_at_load() -> None:
    ours = {"OMP_NUM_THREADS": "1", "LD_PRELOAD": "x", "HOME": "/a"}
    assert differing(ours, ours | {"HOME": "/b"}) == []
    assert differing(ours, {"OMP_NUM_THREADS": "2", "LD_PRELOAD": "x"}) == ["OMP_NUM_THREADS"]
    assert differing(ours, ours | {"PYTHONHASHSEED": "0"}) == ["PYTHONHASHSEED"]


def test_only_the_user_reaches_the_socket(warm: Path) -> None:
    assert warm.stat().st_mode & 0o077 == 0
