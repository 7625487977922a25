"""The worker as a process under load: a hang-up in a long prefill, a full queue."""

from __future__ import annotations

import http.client
import json
import signal
from pathlib import Path

import pytest

from tests.waiting import eventually
from tests.worker_process import TOKEN, run_worker

pytestmark = pytest.mark.costly("starts workers")


@pytest.mark.model
def test_a_hang_up_during_a_long_prefill_stops_it(demo_model: Path, tmp_path: Path) -> None:
    """1,900 tokens are prefilled in chunks, so that the wait is one chunk's, not the prompt's."""
    with run_worker(demo_model, tmp_path, "--memory-gib", "0.2") as worker:
        connection = http.client.HTTPConnection("127.0.0.1", worker.port, timeout=30)
        body = {"model": "tiny", "prompt": [9] * 1900, "max_tokens": 50, "stream": True}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Authorization": f"Bearer {TOKEN}"})
        eventually(lambda: worker.metric("kv_pages_used"))
        connection.sock.shutdown(2)
        connection.close()
        eventually(lambda: not worker.metric("kv_pages_used"))
        assert worker.metric("prompt_tokens_total") < 1900
        assert worker.metric("generated_tokens_total") == 0


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


def test_sigterm_lets_a_stream_end_and_refuses_others(tiny_model: Path, tmp_path: Path) -> None:
    with run_worker(tiny_model, tmp_path) as worker:
        running = http.client.HTTPConnection("127.0.0.1", worker.port, timeout=30)
        body = {"model": "tiny", "prompt": "x", "max_tokens": 500, "stream": True, "ignore_eos": True}
        headers = {"Authorization": f"Bearer {TOKEN}"}
        running.request("POST", "/v1/completions", json.dumps(body), headers)
        stream = running.getresponse()
        seen = stream.read(100)
        worker.process.send_signal(signal.SIGTERM)
        eventually(lambda: worker.call("/health")[0] != 200)
        assert worker.call("/health") == (503, {"status": "draining"})
        late = http.client.HTTPConnection("127.0.0.1", worker.port, timeout=30)
        late.request("POST", "/v1/completions", json.dumps(body), headers)
        answer = late.getresponse()
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        seen += stream.read()
        assert seen.endswith(b"data: [DONE]\n\n")
        assert b'"finish_reason":"length"' in seen
        running.close()
        late.close()
        assert worker.process.wait(15) == 0
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_sigterm_cuts_what_does_not_end_in_time(tiny_model: Path, tmp_path: Path) -> None:
    with run_worker(tiny_model, tmp_path, "--drain-seconds", "0.05") as worker:
        running = http.client.HTTPConnection("127.0.0.1", worker.port, timeout=30)
        body = {"model": "tiny", "prompt": "x", "max_tokens": 500, "stream": True, "ignore_eos": True}
        running.request("POST", "/v1/completions", json.dumps(body), {"Authorization": f"Bearer {TOKEN}"})
        stream = running.getresponse()
        stream.read(100)
        worker.process.send_signal(signal.SIGTERM)
        rest = stream.read()
        assert b"the worker is stopping" in rest
        assert b'"code":"generation_failed"' in rest
        running.close()
        assert worker.process.wait(15) == 0
