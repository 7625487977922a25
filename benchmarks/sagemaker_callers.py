"""Calls a runtime's response stream many times, as one client: `gateway`, `boto3` or `aiobotocore`.

Run as a process of its own by `benchmarks.sagemaker`; prints CPU seconds and wall seconds a call. Each
import is inside its caller, so that aiobotocore may live in an environment of its own.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Any, Final

BODY: Final = {"messages": [{"role": "user", "content": "x" * 1000}], "max_tokens": 64}
AT_ONCE: Final = 8
_KEY: Final = {"aws_access_key_id": "AKIDLOCAL", "aws_secret_access_key": "s"}
_STREAM: Final = {
    **BODY,
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}


async def _many(call: Callable[[], Awaitable[int]], calls: int) -> tuple[float, float]:
    """CPU and wall seconds a call, `AT_ONCE` at a time."""

    async def share() -> None:
        for _ in range(calls // AT_ONCE):
            if not await call():
                raise RuntimeError("the answer was empty")

    await asyncio.gather(*(share() for _ in range(AT_ONCE)))
    cpu, wall = time.process_time(), time.perf_counter()
    await asyncio.gather(*(share() for _ in range(AT_ONCE)))
    count = calls // AT_ONCE * AT_ONCE
    return (time.process_time() - cpu) / count, (time.perf_counter() - wall) / count


async def gateway(url: str, calls: int) -> tuple[float, float]:
    """The gateway's backend: it also turns the lines into server-sent events, which the others do not."""
    from contracts.base_routes import BaseRoute, CopyRoute, SageMakerTarget
    from contracts.route_table import RouteTable, TenantRoute
    from gateway.api.schema import parse
    from gateway.backends.base import BackendRequest
    from gateway.backends.sagemaker import SageMakerBackend
    from gateway.backends.upstream import Upstream
    from gateway.http.aws.sigv4 import Credentials
    from gateway.routing import resolve

    class Fixed:
        async def current(self) -> Credentials:
            return Credentials("AKIDLOCAL", "s")

        def expired(self) -> None:
            raise RuntimeError("the runtime refuses nothing")

    target = SageMakerTarget("eu-central-1", "endpoint", "base")
    copy = CopyRoute("copy", "sagemaker", url, sagemaker=target)
    table = RouteTable(
        tenants={"t": TenantRoute("T", "aa")}, bases={"base": BaseRoute("base", 2048, (copy,))}
    )
    call = parse("/v1/chat/completions", json.dumps({**_STREAM, "model": "base"}).encode())
    request = BackendRequest(call, resolve(table, "t", "base", "s"), copy, "request", "aa", "t")
    backend = SageMakerBackend(Upstream(), Fixed())

    async def once() -> int:
        stream, size = await backend.stream(request), 0
        while part := await stream.read():
            size += len(part)
        stream.close()
        return size

    try:
        return await _many(once, calls)
    finally:
        await backend.close()


async def boto3(url: str, calls: int) -> tuple[float, float]:
    """One client in as many threads."""
    import boto3 as library
    from botocore.config import Config

    config = Config(max_pool_connections=AT_ONCE, retries={"total_max_attempts": 1})
    client = library.client(
        "sagemaker-runtime", endpoint_url=url, region_name="eu-central-1", config=config, **_KEY
    )

    def once() -> int:
        answer = client.invoke_endpoint_with_response_stream(
            EndpointName="endpoint",
            InferenceComponentName="base",
            ContentType="application/json",
            Body=json.dumps(_STREAM).encode(),
        )
        return sum(len(event["PayloadPart"]["Bytes"]) for event in answer["Body"])

    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return await _many(lambda: loop.run_in_executor(threads, once), calls)


async def aiobotocore(url: str, calls: int) -> tuple[float, float]:
    from aiobotocore.session import get_session

    async with AsyncExitStack() as stack:
        client: Any = await stack.enter_async_context(
            get_session().create_client(
                "sagemaker-runtime", endpoint_url=url, region_name="eu-central-1", **_KEY
            )
        )

        async def once() -> int:
            answer = await client.invoke_endpoint_with_response_stream(
                EndpointName="endpoint",
                InferenceComponentName="base",
                ContentType="application/json",
                Body=json.dumps(_STREAM).encode(),
            )
            size = 0
            async for event in answer["Body"]:
                size += len(event["PayloadPart"]["Bytes"])
            return size

        return await _many(once, calls)


if __name__ == "__main__":
    import uvloop

    caller = {"gateway": gateway, "boto3": boto3, "aiobotocore": aiobotocore}[sys.argv[1]]
    print(json.dumps(uvloop.run(caller(sys.argv[2], int(sys.argv[3])))))
