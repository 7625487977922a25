"""The engine's benchmark measures what it says: same work for all, counted, one server at a time."""

from __future__ import annotations

import os
import signal
import socketserver
import statistics
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers

from benchmarks.engine import comparison
from benchmarks.engine.adapters import make_adapters
from benchmarks.engine.contender import Contender
from benchmarks.engine.graftwork import Graftwork
from benchmarks.engine.llama_cpp import LlamaCpp
from benchmarks.engine.streams import Round, Stream, exchange
from benchmarks.engine.vllm_cpu import VllmCpu
from benchmarks.engine.workload import MAX_OUTPUT, MAX_PROMPT, SCENARIOS, Request, Scenario, Workload
from demo.model import model_folder
from optimizer.measurement.rounds import percentile
from tests.waiting import eventually

pytestmark = pytest.mark.slow

EVENT = 'data: {"choices": [{"text": "%s"}]}\n\n'
USAGE = 'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}\n\n'
SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.send_response(200); self.send_header("content-length", "0"); self.end_headers()
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200); self.send_header("transfer-encoding", "chunked"); self.end_headers()
        body = sys.argv[2].encode()
        self.wfile.write(b"%x\\r\\n%s\\r\\n0\\r\\n\\r\\n" % (len(body), body))
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


class Canned(Contender):
    """A server that always says two tokens after three."""

    name = "canned"

    @staticmethod
    def installed() -> bool:
        return True

    def command(self) -> list[str]:
        body = EVENT % "a" + EVENT % "b" + USAGE + "data: [DONE]\n\n"
        return [sys.executable, "-c", SERVER, str(self.port), body]

    def fields(self, request: Request) -> dict[str, Any]:
        return {"model": "canned"}


@pytest.fixture
def workload(tmp_path: Path) -> Workload:
    tokenizer = Tokenizer(models.WordLevel({"unknown": 0}, unk_token="unknown"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return Workload(tmp_path)


@contextmanager
def server(chunks: Sequence[str], *, status: str = "200 OK") -> Iterator[int]:
    """Answers every connection with these chunks; yields its port."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            length = 0
            while (line := self.rfile.readline()) not in (b"\r\n", b""):
                if line.lower().startswith(b"content-length:"):
                    length = int(line.partition(b":")[2])
            self.rfile.read(length)
            self.wfile.write(f"HTTP/1.1 {status}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
            for chunk in chunks:
                self.wfile.write(f"{len(chunk):x}\r\n{chunk}\r\n".encode())
            self.wfile.write(b"0\r\n\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as listener:
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield listener.server_address[1]
        listener.shutdown()
        thread.join()


def test_lengths_are_the_traces_scaled(workload: Workload) -> None:
    requests = [
        request for number in range(4) for request in workload.requests(Scenario("x", 32, 128, 4), number)
    ]
    assert 110 <= statistics.median(len(request.prompt) for request in requests) <= 140
    assert 55 <= statistics.median(request.new_tokens for request in requests) <= 80
    assert max(len(request.prompt) for request in requests) <= MAX_PROMPT
    assert max(request.new_tokens for request in requests) <= MAX_OUTPUT
    assert [request.adapter for request in requests[:5]] == [0, 1, 2, 3, 0]


@pytest.mark.model
def test_rounds_share_lengths_and_no_beginning() -> None:
    workload = Workload(model_folder())
    scenario = SCENARIOS[4]
    first, second = (workload.requests(scenario, number) for number in (0, 1))
    assert workload.requests(scenario, 0) == first
    assert [len(item.prompt) for item in first] == [len(item.prompt) for item in second]
    beginnings = [item.prompt[:16] for item in (*first, *second)]
    assert len(set(beginnings)) == len(beginnings)


def test_events_are_read_across_chunks() -> None:
    whole = EVENT % "a" + EVENT % "" + EVENT % "b" + USAGE + "data: [DONE]\n\n"
    for size in (1, 7, len(whole)):
        chunks = [whole[at : at + size] for at in range(0, len(whole), size)]
        with server(chunks) as port:
            answers, seconds = exchange(port, [{}, {}], streams=2)
        assert [(answer.text, len(answer.arrivals)) for answer in answers] == [("ab", 2), ("ab", 2)]
        assert [(answer.prompt_tokens, answer.completion_tokens) for answer in answers] == [(3, 2)] * 2
        assert 0 < answers[0].arrivals[0] - answers[0].sent < seconds


@pytest.mark.parametrize(
    ("chunks", "status", "problem"),
    [
        ([EVENT % "a", "data: [DONE]\n\n"], "200 OK", "usage"),
        (['data: {"error": {"message": "no"}}\n\n'], "200 OK", "refused"),
        (["{}"], "503 Service Unavailable", "503"),
    ],
)
def test_an_answer_that_is_no_stream_stops_the_run(chunks: list[str], status: str, problem: str) -> None:
    with server(chunks, status=status) as port, pytest.raises(RuntimeError, match=problem):
        exchange(port, [{}], streams=1)


def test_a_round_counts_tokens_and_gaps() -> None:
    streams = [Stream(1.0, [1.5, 1.6, 1.8], completion_tokens=6), Stream(2.0, [2.25], completion_tokens=2)]
    measured = Round.from_streams(streams, 4.0)
    assert measured.tokens_per_s == 2.0
    assert measured.ttft == (0.5, 0.25)
    assert measured.itl == pytest.approx((0.1, 0.2))
    assert percentile(range(101), 99) == 99
    assert percentile((), 50) == 0.0


def _stops(state: Path) -> bool:
    """Soon: a signal takes its time. True where the system has no /proc."""
    return eventually(
        lambda: not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "T",
        message="the process is stopped",
    )


def test_a_server_rests_between_questions_and_must_count_as_asked(tmp_path: Path) -> None:
    contender = Canned(tmp_path, [], tmp_path)
    contender.start()
    try:
        process = contender._process
        assert process is not None
        assert _stops(Path(f"/proc/{process.pid}/stat"))
        answers, _ = contender.ask([Request((1, 2, 3), 2)] * 3, streams=2)
        assert [answer.text for answer in answers] == ["ab"] * 3
        for wrong in (Request((1, 2), 2), Request((1, 2, 3), 5)):
            with pytest.raises(RuntimeError, match="asked for"):
                contender.ask([wrong], streams=1)
    finally:
        contender.stop()
    assert process.poll() is not None


def test_an_adapter_without_effect_stops_the_run(tmp_path: Path) -> None:
    contender = Canned(tmp_path, [], tmp_path)
    contender.start()
    try:
        with pytest.raises(RuntimeError, match="same with an adapter"):
            comparison._warm_up(contender, [Request((1, 2, 3), 2), Request((1, 2, 3), 2, 0)])
    finally:
        contender.stop()


def test_a_server_that_ends_at_once_is_told_with_its_log(tmp_path: Path) -> None:
    contender = Canned(tmp_path, [], tmp_path)
    contender.command = lambda: [sys.executable, "-c", "raise SystemExit('no model here')"]  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="no model here"):
        contender.start()


def test_sigterm_ends_the_servers_too() -> None:
    """SIGTERM by itself would leave them behind, stopped and holding their memory."""
    with pytest.raises(SystemExit), comparison._ended_by_sigterm():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_goals_stand_where_they_belong() -> None:
    scenario = next(item for item in SCENARIOS if item.name == "base_1")
    fast, slow = Round(100.0, (0.1, 0.2), (0.01,) * 3), Round(50.0, (0.4, 0.5), (0.02,) * 3)
    rounds = {"graftwork": [fast], "llama.cpp": [slow], "vllm": [slow]}
    goals = {
        (figure.metric, figure.note): figure.met
        for figure in comparison._figures(scenario, rounds)
        if figure.goal is not None
    }
    assert goals == {
        ("base_1_tokens_per_s", "beside llama.cpp"): True,
        ("base_1_ttft_p50_ms", "beside vllm"): True,
    }
    alone = list(comparison._figures(scenario, {"graftwork": [fast]}))
    assert [figure.ratio for figure in alone] == [None] * 5


def test_peers_that_are_not_named_are_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LLAMA_SERVER", "LLAMA_CONVERT", "VLLM"):
        monkeypatch.delenv(f"GRAFTWORK_{name}", raising=False)
    assert not LlamaCpp.installed()
    assert not VllmCpu.installed()
    assert [figure.metric for figure in comparison._absent([Graftwork])] == ["peer_llama.cpp", "peer_vllm"]


@pytest.mark.model
def test_our_worker_answers_with_different_adapters(tmp_path: Path) -> None:
    adapters = make_adapters(tmp_path / "adapters", 2)
    first, second = (load_file(item.folder / "adapter_model.safetensors") for item in adapters)
    assert first.keys() == second.keys()
    assert not any(first[name].equal(second[name]) for name in first)
    (scratch := tmp_path / "scratch").mkdir()
    contender = Graftwork(model_folder(), adapters, scratch)
    contender.start()
    try:
        comparison._warm_up(contender, Workload(model_folder()).short(2))
    finally:
        contender.stop()
