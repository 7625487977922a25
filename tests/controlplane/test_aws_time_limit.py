"""Celery's soft limit, a signal, while boto3 waits for an answer."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import NoReturn

import boto3
import pytest
from botocore.config import Config
from celery.exceptions import SoftTimeLimitExceeded

from controlplane.aws_time_limit import heed_time_limit
from tests.dripping import dripping


@pytest.fixture
def soft_limit() -> Iterator[None]:
    """Rings once, after 0.5 s, as billiard does it in a worker's child."""

    def ring(*_: object) -> NoReturn:
        raise SoftTimeLimitExceeded

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("soft_limit")
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
        begun = time.monotonic()
        with pytest.raises(SoftTimeLimitExceeded):
            client.head_object(Bucket="bucket", Key="key")
        assert server.connections == 1
        assert time.monotonic() - begun < 4
