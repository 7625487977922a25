"""SageMaker's runtime with one fixed answer: `python -m benchmarks.canned_runtime --port N`.

Any POST gets an event stream of 64 parts, a JSON line each, in one write. It checks no signature: what is
measured is the caller.
"""

from __future__ import annotations

from benchmarks.instant_upstream import InstantUpstream, event_bytes, main
from sagemaker_local import frames


def _answer() -> bytes:
    lines = [event.removeprefix(b"data: ") for event in event_bytes().split(b"\n\n") if event]
    lines[-1] = b""
    body = b"".join(frames.part(line + b"\n") for line in lines)
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/vnd.amazon.eventstream\r\n"
        b"x-amzn-sagemaker-content-type: application/jsonlines\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    return head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


class CannedRuntime(InstantUpstream):
    plain = streamed = models = _answer()


if __name__ == "__main__":
    main(CannedRuntime)
