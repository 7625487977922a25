"""Composition root of the local SageMaker: one address for all services, `/_local` for administration."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

import aiohttp
import boto3
from aiohttp import web

from sagemaker_local.admin import Admin
from sagemaker_local.aws.cloudwatch import CloudWatch
from sagemaker_local.aws.front_door import FrontDoor
from sagemaker_local.aws.moto_proxy import MotoProxy
from sagemaker_local.aws.signature import Account
from sagemaker_local.aws.storage import Storage
from sagemaker_local.callers import check_callers
from sagemaker_local.clock import Clock
from sagemaker_local.config import Config
from sagemaker_local.control_plane import ControlPlane
from sagemaker_local.copies.artifacts import Artifacts
from sagemaker_local.copies.fleet import Host
from sagemaker_local.faults import Faults
from sagemaker_local.gate import Gate
from sagemaker_local.runtime import CLIENT, Runtime
from sagemaker_local.state import State

MAX_BODY_BYTES: Final = 1 << 30
"""Largest upload to S3 in one request; larger files come in parts, and the runtime has its own limit."""
_COPIES: Final = "copies"
_ARTIFACTS: Final = "artifacts"


async def create(config: Config, *, url: str) -> web.Application:
    """Return the application. It belongs on loopback, since a caller who creates a model starts processes.

    Args:
        url: this server's URL for itself and for the containers of this host.

    Raises:
        ConfigError: the state file cannot be read.
    """
    folder = config.work_dir or Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="sagemaker-local-"))
    folder.mkdir(parents=True, exist_ok=True)
    for name in (_COPIES, _ARTIFACTS):
        # Remove what a killed server left.
        await asyncio.to_thread(shutil.rmtree, folder / name, True)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
    client = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))
    clock, faults = Clock(running=config.clock_running), Faults()
    gate, account = Gate(clock, config.rates, faults), Account(config.keys, config.region)
    moto = MotoProxy(client, folder / "moto.log")
    cloudwatch = CloudWatch(moto, config.region)
    host = Host(
        folder / _COPIES,
        Artifacts(folder / _ARTIFACTS, lambda: _s3(config, url)),
        client,
        _container_environment(config, url),
        config.images,
        faults.start,
    )
    plane = ControlPlane(config, clock, host, cloudwatch, gate, lambda: _s3(config, url))
    state = State(config.endpoints, plane.directory)
    runtime = Runtime(account, state, faults, config.part_bytes)

    async def start(_: web.Application) -> None:
        await plane.start()

    async def close(_: web.Application) -> None:
        await plane.close()
        await moto.close()
        await client.close()
        if config.work_dir is None:
            await asyncio.to_thread(shutil.rmtree, folder, True)

    app = web.Application(
        client_max_size=MAX_BODY_BYTES,
        handler_args={"access_log": None},
        middlewares=[check_callers(config.allowed_hosts, config.admin_token)],
    )
    app[CLIENT] = client
    app.on_startup.append(start)
    app.on_cleanup.append(close)
    app.add_routes(Admin(state, faults, runtime, clock, gate).routes)
    app.add_routes(runtime.routes)
    s3_url = config.s3_endpoint_url
    storage = None if s3_url is None else Storage(client, s3_url, config.region)
    front_door = FrontDoor(account, plane.services, moto, cloudwatch, faults, storage)
    app.add_routes([web.route("*", "/{path:.*}", front_door.handle)])
    return app


def _s3(config: Config, url: str) -> Any:
    """Return the S3 client for artifacts: this server's own S3, unless another one is configured."""
    if config.s3_endpoint_url is not None:
        return boto3.client("s3", endpoint_url=config.s3_endpoint_url, region_name=config.region)
    key = config.keys[0]
    return boto3.client(
        "s3",
        endpoint_url=url,
        region_name=config.region,
        aws_access_key_id=key.access_key,
        aws_secret_access_key=key.secret_key,
        aws_session_token=key.session_token,
    )


def _container_environment(config: Config, url: str) -> dict[str, str]:
    """Return a container's environment: region and credentials, as at SageMaker, and the S3 address."""
    key = config.keys[0]
    own = {"AWS_ACCESS_KEY_ID": key.access_key, "AWS_SECRET_ACCESS_KEY": key.secret_key}
    credentials = own if config.s3_endpoint_url is None else {}
    return {
        "AWS_DEFAULT_REGION": config.region,
        "GRAFTWORK_S3_ENDPOINT_URL": config.s3_endpoint_url or url,
        **credentials,
    }
