"""The worker process: stopped, killed, or without disk space; weights that are not finite."""

from __future__ import annotations

import contextlib
import http.client
import json
import resource
import shutil
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from contracts.adapters.reference import ADAPTER_FILES, AdapterRef
from tests.waiting import eventually
from tests.worker_engine.tiny_adapter import adapter_ref
from tests.worker_process import TOKEN, Worker, run_worker

pytestmark = pytest.mark.costly("starts workers")

HEADERS = {"Authorization": f"Bearer {TOKEN}"}
LONG: dict[str, Any] = {"model": "tiny", "prompt": "x", "max_tokens": 120, "ignore_eos": True, "stream": True}


@contextlib.contextmanager
def stream_of(worker: Worker, **body: Any) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", worker.port, timeout=120)
    with contextlib.closing(connection):
        connection.request("POST", "/v1/completions", json.dumps(LONG | body), HEADERS)
        with connection.getresponse() as answer:
            yield answer


@pytest.mark.costly("starts a worker of its own")
def test_sigterm_under_load_ends_every_stream_and_the_process(tiny_model: Path, tmp_path: Path) -> None:
    """Ninety-six streams over 64 rows, and clients that always send the next request."""
    with run_worker(tiny_model, tmp_path, "--drain-seconds", "120") as worker:
        refused: list[int] = []

        def insist() -> None:
            with contextlib.suppress(OSError, http.client.HTTPException):
                while True:
                    refused.append(worker.complete()[0])

        def read_out() -> bytes:
            with stream_of(worker) as answer:
                return b"refused" if answer.status == 503 else answer.read()

        with ThreadPoolExecutor(100) as threads:
            streams = [threads.submit(read_out) for _ in range(96)]
            for _ in range(4):
                threads.submit(insist)
            eventually(lambda: worker.metric("requests_running") >= 32)
            worker.process.send_signal(signal.SIGTERM)
            ends = [stream.result(200) for stream in streams]
            assert worker.process.wait(60) == 0
        told = [end for end in ends if end != b"refused"]
        assert len(told) >= 32
        assert all(end.endswith(b"data: [DONE]\n\n") for end in told)
        assert 503 in refused
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_sigterm_under_load_cuts_what_outlasts_the_drain(tiny_model: Path, tmp_path: Path) -> None:
    def read_out() -> bytes:
        with stream_of(worker, max_tokens=500) as answer:
            return answer.read()

    flags = ("--drain-seconds", "0.1")
    with run_worker(tiny_model, tmp_path, *flags) as worker, ThreadPoolExecutor(64) as threads:
        streams = [threads.submit(read_out) for _ in range(64)]
        eventually(lambda: worker.metric("requests_running") >= 32)
        worker.process.send_signal(signal.SIGTERM)
        ends = [stream.result(200) for stream in streams]
        assert worker.process.wait(60) == 0
        assert all(b"[DONE]" in end or b"the worker is " in end for end in ends)
    assert "Traceback" not in (tmp_path / "log").read_text()


@pytest.fixture
def mute_store() -> Iterator[str]:
    """An object store that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


SOON = (
    "import sys; from worker_engine import __main__, program; program.EXIT_SECONDS = 1.0; "
    "sys.exit(__main__.main())"
)


def test_a_thread_that_hangs_does_not_keep_the_process(
    tiny_model: Path, tiny_adapters: dict[str, Path], tmp_path: Path, mute_store: str
) -> None:
    """A load that waits for its store outlives its request; Python would wait for its thread."""
    variables = {
        "GRAFTWORK_S3_ENDPOINT_URL": mute_store,
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    ref = adapter_ref(tiny_adapters["plain"])
    lost = AdapterRef(ref.name, "s3://bucket/lost/", ref.sha256, ref.rank)
    flags = ("--drain-seconds", "0.1")
    with run_worker(tiny_model, tmp_path, *flags, program=("-c", SOON), variables=variables) as worker:
        asking = threading.Thread(target=lambda: ask_in_vain(worker, lost))
        asking.start()
        eventually(lambda: worker.call("/load")[1]["pending"] == 1)
        assert worker.complete()[0] == 200, "others are served meanwhile"
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(60) == 1
        asking.join(60)
    log = (tmp_path / "log").read_text()
    assert "not stopped within 1 s" in log
    assert "_fetch_s3" in log, "where it hung is told"


def ask_in_vain(worker: Worker, ref: AdapterRef) -> None:
    with contextlib.suppress(OSError, http.client.HTTPException):
        worker.complete(model=ref.name, adapter=ref.to_dict())


@pytest.mark.costly("starts two workers")
def test_after_a_kill_the_next_process_serves_from_the_same_cache(
    tiny_model: Path, tiny_adapters: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_adapters["plain"], tmp_path / "adapter")
    ref = adapter_ref(folder)
    asked = {"model": ref.name, "adapter": ref.to_dict(), "temperature": 0}
    with run_worker(tiny_model, tmp_path, from_cold=True) as worker:
        before = worker.complete(**asked)[1]["choices"]
        with stream_of(worker, max_tokens=500) as stream:
            stream.read(100)
            worker.process.kill()
            with pytest.raises((http.client.IncompleteRead, ConnectionError)):
                stream.read()
        worker.process.wait(30)
    half = tmp_path / "cache" / ".part-killed"
    half.mkdir()
    (half / ADAPTER_FILES[0]).write_bytes(b"{")
    shutil.rmtree(folder)
    with run_worker(tiny_model, tmp_path) as worker:
        assert not half.exists()
        assert worker.complete(**asked)[1]["choices"] == before
        assert worker.metric("requests_running") == 0


def test_a_full_disk_costs_the_cache_not_the_request(
    tiny_model: Path, tiny_adapters: dict[str, Path], tmp_path: Path
) -> None:
    """A limit on the size of files simulates the full disk: writes fail at the same place."""
    small, large = adapter_ref(tiny_adapters["narrow"]), adapter_ref(tiny_adapters["all"])
    with run_worker(tiny_model, tmp_path, from_cold=True) as worker:
        size = (tiny_adapters["all"] / ADAPTER_FILES[1]).stat().st_size
        resource.prlimit(worker.process.pid, resource.RLIMIT_FSIZE, (size - 1, size))
        for ref in (small, large):
            assert worker.complete(model=ref.name, adapter=ref.to_dict())[0] == 200
        assert worker.metric("adapter_cache_failures_total") == 1
        assert [folder.name for folder in (tmp_path / "cache").iterdir()] == [small.sha256]
        assert worker.call("/health")[0] == 200


def poisoned(model: Path, folder: Path, token: int) -> Path:
    """The checkpoint with NaN where `token` is embedded."""
    shutil.copytree(model, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.embed_tokens.weight"][token] = float("nan")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_weights_that_are_not_finite_end_only_the_requests_that_meet_them(
    tiny_model: Path, tiny_adapters: dict[str, Path], tmp_path: Path
) -> None:
    """Among rows of the same steps, in the pages that they leave, and with an adapter."""
    model, bad = poisoned(tiny_model, tmp_path / "model", token=7), [1, 7, 2]
    ref = adapter_ref(tiny_adapters["plain"])
    with run_worker(model, tmp_path, "--memory-gib", "0.002") as worker:
        good = {"prompt": [3, 4, 5] * 20, "max_tokens": 60, "temperature": 0}
        alone = worker.complete(**good)[1]["choices"]
        with ThreadPoolExecutor(8) as threads:
            sound = [threads.submit(worker.complete, **good) for _ in range(3)]
            for _ in range(10):
                for named in ({}, {"model": ref.name, "adapter": ref.to_dict()}):
                    status, body = worker.complete(prompt=bad, **named)
                    assert (status, body["error"]["code"]) == (500, "generation_failed")
                    assert "non-finite" in body["error"]["message"]
                    assert worker.call("/health")[1]["status"] == "ok"
            assert all(future.result()[1]["choices"] == alone for future in sound)
        assert worker.complete(**good)[1]["choices"] == alone
        assert worker.metric("engine_restarts_total") == 0
        assert worker.call("/load")[1]["pending"] == 0


def test_files_that_change_behind_a_registered_name(
    tiny_model: Path, tiny_adapters: dict[str, Path], tmp_path: Path
) -> None:
    """An adapter in memory is served; one that must be read again is refused until it is registered anew."""
    root = tmp_path / "root"
    folder = shutil.copytree(tiny_adapters["plain"], root / "one")
    with run_worker(tiny_model, tmp_path, "--adapters-dir", str(root)) as worker:
        asked: dict[str, Any] = {"model": "one", "temperature": 0, "prompt": "hello", "max_tokens": 8}
        before = worker.complete(**asked)[1]["choices"]
        load = {"lora_name": "two", "lora_path": "one"}
        shutil.copytree(tiny_adapters["all"], folder, dirs_exist_ok=True)
        assert worker.complete(**asked)[1]["choices"] == before
        assert worker.call("/v1/load_lora_adapter", load)[0] == 200
        after = worker.complete(**asked | {"model": "two"})[1]["choices"]
        assert after != before
        lazy = "/adapters?name=three&src=one&preload=false"
        shutil.copytree(tiny_adapters["rslora"], folder, dirs_exist_ok=True)
        assert worker.call(lazy, raw=b"")[0] == 200
        shutil.copytree(tiny_adapters["patterns"], folder, dirs_exist_ok=True)
        shutil.rmtree(tmp_path / "cache")
        status, body = worker.complete(**asked | {"model": "three"})
        assert (status, body["error"]["code"]) == (400, "adapter_refused")
        assert "digest" in body["error"]["message"]
        (folder / ADAPTER_FILES[1]).unlink()
        assert worker.complete(**asked | {"model": "three"})[1]["error"]["code"] == "adapter_unavailable"
        assert worker.call("/adapters/three/update", raw=b"")[0] == 400
        assert worker.complete(**asked)[1]["choices"] == before
        assert worker.complete(**asked | {"model": "two"})[1]["choices"] == after
