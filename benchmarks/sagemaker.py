"""Caller's CPU cost of a streamed SageMaker call: the gateway's own client against boto3 and aiobotocore.

All run against one canned runtime in its own process, in alternating rounds; medians are reported. Only the
calling process's CPU time counts. aiobotocore pins its own botocore version: it runs if
GRAFTWORK_BENCH_AIOBOTOCORE names the Python of an environment that has it and uvloop.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Final

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotocoreKeys
from botocore.eventstream import EventStreamBuffer

from benchmarks.figure import Figure, compared
from benchmarks.gateway.targets import serve
from benchmarks.processes import ROOT
from gateway.http.aws.event_stream import EventStreamParser
from gateway.http.aws.sigv4 import Credentials, Signer
from sagemaker_local import frames

CALLS: Final = {"gateway": 2000, "boto3": 400, "aiobotocore": 400}
ROUNDS: Final = 5
_URL: Final = "https://runtime.sagemaker.eu-central-1.amazonaws.com/endpoints/e/invocations-response-stream"


def run() -> Iterator[Figure]:
    """Yield the CPU time of whole calls, then of a signature and of a frame alone."""
    yield from _calls()
    yield from _signatures()
    yield from _frames()


def _calls() -> Iterator[Figure]:
    pythons = {"gateway": sys.executable, "boto3": sys.executable}
    if other := os.environ.get("GRAFTWORK_BENCH_AIOBOTOCORE"):
        pythons["aiobotocore"] = other
    cpu: dict[str, list[float]] = {name: [] for name in pythons}
    with ExitStack() as stack:
        url = serve(stack, "benchmarks.canned_runtime").url
        for _ in range(ROUNDS):
            for name, python in pythons.items():
                command = [python, "-m", "benchmarks.sagemaker_callers", name, url, str(CALLS[name])]
                answer = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
                cpu[name].append(json.loads(answer.stdout)[0] * 1000)
    ours = statistics.median(cpu.pop("gateway"))
    for name, values in cpu.items():
        metric, theirs = f"call_beside_{name}", statistics.median(values)
        note = "1 kB request, 64 parts, 8 calls at a time"
        yield compared("sagemaker", metric, ours, "ms CPU", baseline=theirs, less_is_better=True, note=note)


def _signatures() -> Iterator[Figure]:
    body, headers = b"x" * 1024, {"content-type": "application/json"}
    signer, keys = Signer("sagemaker", "eu-central-1"), Credentials("AKID", "secret", "token" * 100)
    auth = SigV4Auth(BotocoreKeys("AKID", "secret", "token" * 100), "sagemaker", "eu-central-1")

    def ours() -> Any:
        return signer.headers("POST", _URL, headers, body, keys)

    def botocores() -> Any:
        auth.add_auth(AWSRequest("POST", _URL, headers, body))

    yield _compare("signature", ours, botocores, 1, "1 KiB body, session token")


def _frames() -> Iterator[Figure]:
    data = b"".join(frames.part(b'{"token": %d}\n' % number * 8) for number in range(64))

    def ours() -> Any:
        return EventStreamParser().feed(data)

    def botocores() -> Any:
        buffer = EventStreamBuffer()
        buffer.add_data(data)
        return list(buffer)

    yield _compare("frame", ours, botocores, 64, "64 parts in one read")


def _compare(
    metric: str, ours: Callable[[], Any], botocores: Callable[[], Any], units: int, note: str
) -> Figure:
    """Compare two functions; medians of alternating rounds."""
    times: dict[Callable[[], Any], list[float]] = {ours: [], botocores: []}
    for _ in range(15):
        for work, values in times.items():
            started = time.process_time()
            for _ in range(200):
                work()
            values.append((time.process_time() - started) / 200 / units * 1e6)
    mine, other = statistics.median(times[ours]), statistics.median(times[botocores])
    note = f"beside botocore: {note}"
    return compared("sagemaker", metric, mine, "us CPU", baseline=other, less_is_better=True, note=note)
