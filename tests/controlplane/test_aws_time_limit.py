"""Celery's soft limit, a signal, while boto3 waits for an answer."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import boto3
import pytest
from botocore.config import Config
from celery.exceptions import SoftTimeLimitExceeded

from controlplane.platform.aws_time_limit import heed_time_limit
from tests.dripping import Dripping, dripping
from tests.waiting import eventually


@contextmanager
def soft_limit_during_request(server: Dripping) -> Iterator[None]:
    """Raise SoftTimeLimitExceeded by a signal, as billiard does, once the server has a connection."""

    def limit(*_: object) -> NoReturn:
        raise SoftTimeLimitExceeded

    def ring() -> None:
        eventually(lambda: server.connections)
        os.kill(os.getpid(), signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, limit)
    ringer = threading.Thread(target=ring)
    ringer.start()
    try:
        yield
    finally:
        ringer.join()
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("mode", ["standard", "legacy"])
def test_a_time_limit_ends_a_request_instead_of_repeating_it(mode: str) -> None:
    with dripping() as server:
        options = Config(read_timeout=5, retries={"mode": mode, "total_max_attempts": 3})
        client = heed_time_limit(
            boto3.client(
                "s3",
                endpoint_url=server.url,
                config=options,
                region_name="us-east-1",
                aws_access_key_id="a",
                aws_secret_access_key="b",
            )
        )
        with soft_limit_during_request(server), pytest.raises(SoftTimeLimitExceeded):
            client.head_object(Bucket="bucket", Key="key")
        # Each byte of the answer restarts the read timeout: nothing but the limit ends the request.
        assert server.connections == 1
