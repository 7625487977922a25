"""What a streamed SageMaker call costs its caller: the gateway's own client beside boto3 and aiobotocore.

All in one run against one canned runtime in its own process, in turns, medians of rounds. CPU time of the
calling process, so that the runtime's does not count. aiobotocore pins a botocore of its own: it runs where
GRAFTWORK_BENCH_AIOBOTOCORE names the Python of an environment that has it and uvloop, else it is left out.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotocoreKeys
from botocore.eventstream import EventStreamBuffer

from benchmarks.figure import Figure, compared
from gateway.http.aws.event_stream import EventStreamParser
from gateway.http.aws.sigv4 import Credentials, Signer
from sagemaker_local import frames

ROOT: Final = Path(__file__).resolve().parent.parent
CALLS: Final = {"gateway": 2000, "boto3": 400, "aiobotocore": 400}
ROUNDS: Final = 5
_URL: Final = "https://runtime.sagemaker.eu-central-1.amazonaws.com/endpoints/e/invocations-response-stream"


def run() -> Iterator[Figure]:
    """CPU time of whole calls, then of a signature and of a frame alone."""
    yield from _calls()
    yield from _signatures()
    yield from _frames()


def _calls() -> Iterator[Figure]:
    pythons = {"gateway": sys.executable, "boto3": sys.executable}
    if other := os.environ.get("GRAFTWORK_BENCH_AIOBOTOCORE"):
        pythons["aiobotocore"] = other
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.canned_runtime", "--port", str(port)], cwd=ROOT
    )
    try:
        time.sleep(1.5)
        cpu: dict[str, list[float]] = {name: [] for name in pythons}
        for _ in range(ROUNDS):
            for name, python in pythons.items():
                url = f"http://127.0.0.1:{port}"
                command = [python, "-m", "benchmarks.sagemaker_callers", name, url, str(CALLS[name])]
                answer = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
                cpu[name].append(json.loads(answer.stdout)[0] * 1000)
    finally:
        server.terminate()
        server.wait()
    own = statistics.median(cpu.pop("gateway"))
    for name, values in cpu.items():
        yield compared(
            "sagemaker", f"call_beside_{name}", own, "ms CPU", baseline=statistics.median(values),
            less_is_better=True, note="1 kB request, 64 parts, 8 calls at a time",
        )  # fmt: skip


def _signatures() -> Iterator[Figure]:
    body, headers = b"x" * 1024, {"content-type": "application/json"}
    signer, keys = Signer("sagemaker", "eu-central-1"), Credentials("AKID", "secret", "token" * 100)
    auth = SigV4Auth(BotocoreKeys("AKID", "secret", "token" * 100), "sagemaker", "eu-central-1")

    def own() -> Any:
        return signer.headers("POST", _URL, headers, body, keys)

    def theirs() -> Any:
        auth.add_auth(AWSRequest("POST", _URL, headers, body))

    yield _beside("signature", own, theirs, 1, "1 KiB body, session token")


def _frames() -> Iterator[Figure]:
    data = b"".join(frames.part(b'{"token": %d}\n' % number * 8) for number in range(64))

    def own() -> Any:
        return EventStreamParser().feed(data)

    def theirs() -> Any:
        buffer = EventStreamBuffer()
        buffer.add_data(data)
        return list(buffer)

    yield _beside("frame", own, theirs, 64, "64 parts in one read")


def _beside(metric: str, own: Callable[[], Any], theirs: Callable[[], Any], units: int, note: str) -> Figure:
    """Medians of alternating rounds."""
    times: dict[Callable[[], Any], list[float]] = {own: [], theirs: []}
    for _ in range(15):
        for work, values in times.items():
            started = time.process_time()
            for _ in range(200):
                work()
            values.append((time.process_time() - started) / 200 / units * 1e6)
    mine, other = statistics.median(times[own]), statistics.median(times[theirs])
    note = f"beside botocore: {note}"
    return compared("sagemaker", metric, mine, "us CPU", baseline=other, less_is_better=True, note=note)
