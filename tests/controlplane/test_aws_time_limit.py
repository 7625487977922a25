"""Celery's soft limit, a signal, while boto3 waits for an answer."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import NoReturn

import boto3
import pytest
from botocore.config import Config
from celery.exceptions import SoftTimeLimitExceeded

from controlplane.aws_time_limit import heed_time_limit
from tests.dripping import Dripping, dripping
from tests.waiting import eventually


@pytest.fixture
def dripping_server() -> Iterator[Dripping]:
    """A server; once it is asked the soft limit rings, as billiard does it in a worker's child."""

    def ring(*_: object) -> NoReturn:
        raise SoftTimeLimitExceeded

    def watch(server: Dripping) -> None:
        eventually(lambda: server.connections, message="a request")
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, ring)
    with dripping() as server:
        watching = threading.Thread(target=watch, args=(server,))
        watching.start()
        yield server
        watching.join()
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("mode", ["standard", "legacy"])
def test_a_time_limit_ends_a_request_instead_of_repeating_it(dripping_server: Dripping, mode: str) -> None:
    client = heed_time_limit(
        boto3.client(
            "s3",
            endpoint_url=dripping_server.url,
            config=Config(read_timeout=60, retries={"mode": mode, "total_max_attempts": 3}),
            region_name="us-east-1",
            aws_access_key_id="a",
            aws_secret_access_key="b",
        )
    )
    with pytest.raises(SoftTimeLimitExceeded):
        client.head_object(Bucket="bucket", Key="key")
    assert dripping_server.connections == 1
