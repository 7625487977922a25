"""Arrivals of a trace: which requests a round has, when they are sent, and from when their waits count."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from contracts.recipes.progress import Code, JobError
from contracts.recipes.spec_fields import SpecError, SpecFields
from optimizer.measurement.arm_process import ArmProcess
from optimizer.measurement.comparison_order import Arm, Level, Load
from optimizer.measurement.streams import Ask, exchange
from optimizer.measurement.workload import Workload
from tests.optimizer.job_process import carry_out, write_order

PATIENCE = 20.0


def trace(folder: Path, arrivals: list[float]) -> Path:
    """Prompts of 1, 2, 3, ... tokens, so that each request is known by its length."""
    path = folder / "trace.csv"
    rows = "".join(f"{at},{index + 1},3\n" for index, at in enumerate(arrivals))
    path.write_text(f"arrival_s,context_tokens,generated_tokens\n{rows}")
    return path


def workload(path: Path, model: Path, **fields: Any) -> Workload:
    load = {"trace": str(path), "speeds": [2], "requests": 4, **fields}
    return Workload(Load.read(SpecFields("load", load)), model, [], seed=1)


def test_a_round_is_a_stretch_of_the_trace_at_its_distances(tiny_model: Path, tmp_path: Path) -> None:
    arrivals = [0.5, 1.0, 3.0, 3.0, 7.0, 8.0, 8.5, 20.0]
    made = workload(trace(tmp_path, arrivals), tiny_model)
    starts = set()
    for number in range(40):
        asks = made.asks(number, Level(speed=2.0))
        start = len(asks[0].body["prompt"]) - 1
        starts.add(start)
        window = arrivals[start : start + 4]
        assert [ask.at for ask in asks] == [(at - window[0]) / 2 for at in window]
        assert [len(ask.body["prompt"]) for ask in asks] == list(range(start + 1, start + 5))
        assert asks == made.asks(number, Level(speed=2.0)), "every arm is asked the same"
    assert starts == set(range(5))


def test_too_short_and_too_slow_a_trace_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    path = trace(tmp_path, [0.0, 1.0, 4000.0])
    with pytest.raises(JobError, match="has 3 lines; a round of arrivals needs 4"):
        workload(path, tiny_model)
    with pytest.raises(SpecError, match="speeds of 4 replays 2 requests over as many as 1000 s"):
        workload(path, tiny_model, requests=2, speeds=[4, 8])
    workload(path, tiny_model, requests=2, speeds=[8])


class _Server(ThreadingHTTPServer):
    """Answers with one token, once as many requests as are wanted have come, or after `PATIENCE`."""

    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _StreamHandler)
        self.asked: list[float] = []
        self.wanted = 1
        self.complete = threading.Event()
        self.gave_up = False


class _StreamHandler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, _Server)
        server.asked.append(time.perf_counter())
        self.rfile.read(int(self.headers["Content-Length"]))
        if len(server.asked) >= server.wanted:
            server.complete.set()
        if not server.complete.wait(PATIENCE):
            server.gave_up = True
        event = json.dumps({"usage": {"prompt_tokens": 1, "completion_tokens": 1}})
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"data: {event}\n\ndata: [DONE]\n\n".encode())

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on stderr."""


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def arm(server: _Server, tmp_path: Path) -> ArmProcess:
    """An arm whose server is this process's."""
    arm = ArmProcess(Arm("here", tmp_path, (), {}, None), tmp_path)
    arm.port = server.server_port
    return arm


def test_requests_are_sent_when_they_are_due(arm: ArmProcess, server: _Server) -> None:
    """No request waits for another to end, and each is timed from when it was due."""
    due = [0.0, 0.1, 0.2, 0.5]
    server.wanted = len(due)
    answers, seconds = exchange(arm, [Ask("/v1/completions", {}, at) for at in due], streams=0)
    assert not server.gave_up, "a request waited for another's answer"
    assert [answer.sent - answers[0].sent for answer in answers] == pytest.approx(due, abs=1e-6)
    assert all(at >= answer.sent for at, answer in zip(sorted(server.asked), answers, strict=True))
    # All are answered when the last has come: the first has waited from its own time on.
    assert answers[0].ttft >= 0.5
    assert seconds >= 0.5


def test_in_turns_the_next_is_sent_when_one_ends(arm: ArmProcess, server: _Server) -> None:
    answers, _ = exchange(arm, [Ask("/v1/completions", {}, 9.0)] * 3, streams=1)
    assert all(later.sent >= first.ended for first, later in pairwise(answers))


def test_more_streams_than_a_client_has_connections_by_default(arm: ArmProcess, server: _Server) -> None:
    """aiohttp's own limit of 100 would have the others wait for an answer."""
    server.wanted = 150
    exchange(arm, [Ask("/v1/completions", {})] * 150, streams=150)
    assert (server.gave_up, len(server.asked)) == (False, 150)


@pytest.mark.costly("starts two workers and measures them")
def test_a_comparison_replays_a_trace(tiny_model: Path, tmp_path: Path) -> None:
    path = trace(tmp_path, [index * 0.05 for index in range(8)])
    flags = ["--num-threads", "1", "--memory-gib", "0.01", "--dtype", "float32"]
    order = {
        "arms": [{"name": name, "model": str(tiny_model), "flags": flags} for name in ("original", "same")],
        "load": {"trace": str(path), "speeds": [1, 2], "requests": 4, "max_tokens": 8},
        "quality": {"most_texts": 0, "prompts": 0, "samples": 0},
        "price": {"hour": 3.6, "input": 1.0, "output": 5.0},
    }
    output = tmp_path / "result.json"
    ended = carry_out("compare", write_order(tmp_path / "order.json", order), output, 200)
    assert ended.status == 0, ended.stderr
    result = json.loads(output.read_text())
    assert [(level["concurrency"], level["speed"]) for level in result["levels"]] == [
        (None, 1.0),
        (None, 2.0),
    ]
    (compared,) = result["comparisons"]
    assert {name.rpartition(" at ")[2] for name in compared["figures"]} == {"1x", "2x"}
    for level in result["levels"]:
        for figures in level["arms"].values():
            assert figures["requests"] == 4 * result["rounds"]["measured"]
            assert figures["throughput_by_formula"] is None
            assert [price["by"] for price in figures["blended"]] == ["list_price"]
            assert figures["in_flight"] > 0
    again = carry_out("compare", tmp_path / "order.json", output)
    assert (again.last["code"], "is there already" in again.last["message"]) == (Code.OUTPUT_EXISTS, True)
