"""The worker as a process under load: a hang-up in a long prefill, a full queue."""

from __future__ import annotations

import http.client
import json
import os
import time
from pathlib import Path

import pytest

from tests.worker_engine.test_server import TOKEN, run_worker


@pytest.mark.model
def test_a_hang_up_during_a_long_prefill_stops_it(demo_model: Path, tmp_path: Path) -> None:
    """1,900 tokens are prefilled in chunks, so that the wait is one chunk's, not the prompt's."""
    with run_worker(demo_model, tmp_path, "--memory-gib", "0.2") as worker:
        warm = worker.complete(max_tokens=1)
        assert warm[0] == 200
        connection = http.client.HTTPConnection("127.0.0.1", worker.port, timeout=30)
        body = {"model": "tiny", "prompt": [9] * 1900, "max_tokens": 50, "stream": True}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Authorization": f"Bearer {TOKEN}"})
        while not worker.metric("kv_pages_used"):
            time.sleep(0.01)
        connection.sock.shutdown(2)
        connection.close()
        spent = cpu_seconds(worker.process.pid)
        while worker.metric("kv_pages_used"):
            time.sleep(0.01)
        # CPU time of one thread, so that a busy machine does not fail it; the whole prompt takes 3 s.
        assert cpu_seconds(worker.process.pid) - spent < 0.6
        assert worker.metric("generated_tokens_total") == 1


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_full_queue_is_503_with_retry_after(tiny_model: Path, tmp_path: Path) -> None:
    with run_worker(tiny_model, tmp_path, "--max-num-seqs", "1", "--max-waiting", "0") as worker:
        busy = http.client.HTTPConnection("127.0.0.1", worker.port, timeout=30)
        body = {"model": "tiny", "prompt": "x", "max_tokens": 500, "stream": True, "ignore_eos": True}
        headers = {"Authorization": f"Bearer {TOKEN}"}
        busy.request("POST", "/v1/completions", json.dumps(body), headers)
        busy.getresponse().read(100)
        other = http.client.HTTPConnection("127.0.0.1", worker.port, timeout=30)
        other.request("POST", "/v1/completions", json.dumps(body), headers)
        answer = other.getresponse()
        error = json.loads(answer.read())["error"]
        assert (answer.status, answer.headers["Retry-After"], error["code"]) == (503, "1", "unavailable")
        busy.close()
        other.close()
