"""The worker's composition root: reads its configuration, builds the service and serves it until a signal."""

from __future__ import annotations

import argparse
import faulthandler
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Final

from contracts.environment import EnvironmentReader, SettingsError
from contracts.tracing import Tracing, TracingUnavailable
from kernels import tuned
from worker_engine.config import EngineConfig
from worker_engine.errors import ConfigError
from worker_engine.startup import Startup

if TYPE_CHECKING:  # torch takes 1.5 s to import
    from aiohttp import web

    from worker_engine.service import Service
    from worker_engine.text.tokenizer import ChatTokenizer

log = logging.getLogger("worker_engine")

EXIT_SECONDS: Final = 10.0
"""After the drain time, for streams to be told and threads to end."""


def parse_config(arguments: Sequence[str], environment: Mapping[str, str]) -> EngineConfig:
    """Flags carry EngineConfig's names; the token and the S3 endpoint come from the environment.

    Raises:
        ConfigError: a value is malformed.
        SystemExit: a flag is unknown or lacks its value.
    """
    parser = argparse.ArgumentParser(
        prog="python -m worker_engine", description="Serves one base model.", allow_abbrev=False
    )
    secret = {"fleet_token", "s3_endpoint_url"}
    kinds = {"Path": Path, "Path | None": Path, "int": int, "float": float, "str": str}
    for item in fields(EngineConfig):
        if item.name not in secret:
            flag = f"--{item.name.replace('_', '-')}"
            required = item.name in ("model", "served_model_name")
            parser.add_argument(
                flag, type=kinds[str(item.type)], required=required, default=argparse.SUPPRESS
            )
    env = EnvironmentReader(environment)
    try:
        fleet_token = env.secret("FLEET_TOKEN")
        s3_endpoint_url = env.url("S3_ENDPOINT_URL", ("http", "https"), "") or None
        trusted = env.choice("TRUST_NETWORK", ("no", "yes")) == "yes"
    except SettingsError as error:
        raise ConfigError(str(error)) from None
    config = EngineConfig(
        **vars(parser.parse_args(arguments)), fleet_token=fleet_token, s3_endpoint_url=s3_endpoint_url
    )
    try:
        tuned.folder()
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if not config.fleet_token and not trusted and config.host not in ("127.0.0.1", "::1", "localhost"):
        raise ConfigError(
            f"--host {config.host} can be reached from outside: set GRAFTWORK_FLEET_TOKEN to the token that "
            "gateways send, serve on 127.0.0.1, or set GRAFTWORK_TRUST_NETWORK=yes where the network lets "
            "nobody else in, as SageMaker's does"
        )
    return config


def calm_openmp() -> None:
    """Lets OpenMP's idle threads sleep, unless the operator chose; libgomp reads this when torch loads.

    By default they spin for milliseconds between two operations and take the core from whatever the other
    thread waits for. Measured on 2 cores shared with others, SmolLM2-135M in bf16, four adapters: 21 instead
    of 10 tokens/s at 1 stream and 124 instead of 70 at 8, for 32 instead of 48 and 53 instead of 67 ms of CPU
    time a step; with one core burnt by another process 28 instead of 13 and 113 instead of 100. Short spins
    (GOMP_SPINCOUNT 1,000 and 10,000) were better or worse from case to case; one thread gains on neither.
    """
    if "GOMP_SPINCOUNT" not in os.environ:
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def _exit_at_latest(seconds: float) -> None:
    """Ends the process by then, whatever hangs: a step on the device, or threads that wait for a store.

    Python joins its threads before it exits. Status 1 and every thread's stack then say that it came to this.
    """

    def end() -> None:
        log.error("not stopped within %g s: ending", seconds)
        faulthandler.dump_traceback(sys.stderr)
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


async def _serve(app: web.Application, service: Service, config: EngineConfig) -> None:
    """Serves until SIGINT or SIGTERM; then refuses with 503 while what runs may go on for the drain time.

    The socket stays open meanwhile: a refusal says when to come back, and health says `draining`. A second
    signal ends it at once. After `EXIT_SECONDS` more the process ends, whatever still runs in it.
    """
    import asyncio

    from aiohttp import web

    from worker_engine.http.connection import Runner

    runner = Runner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, config.host, config.port).start()
        service.startup.end("listen")
        log.info("serving on http://%s:%d", config.host, config.port)
        log.info("startup %s", json.dumps(service.startup.report()))
        signals = asyncio.Semaphore(0)
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, signals.release)
        await signals.acquire()
        log.info("stopping: requests may go on for %g s", config.drain_seconds)
        waits = [
            asyncio.create_task(service.drain(config.drain_seconds)),
            asyncio.create_task(signals.acquire()),
        ]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        _exit_at_latest(EXIT_SECONDS)
        # Before the clean-up, which waits for responses: what still runs ends with an error that is sent.
        await asyncio.to_thread(service.stop)
    finally:
        await runner.cleanup()


def run(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    startup: Startup,
    tokenizer_of: Callable[[Path], ChatTokenizer | None] = lambda _: None,
) -> int:
    """Serves until SIGINT or SIGTERM. Exit status 2 when the configuration or checkpoint is wrong.

    Args:
        tokenizer_of: a checkpoint's tokenizer, where this process has read it already.
    """
    try:
        config = parse_config(arguments, environment)
        startup.end("process")
        calm_openmp()
        # A stand-in for a zygote's fork needs none of these.
        import asyncio

        # Torch takes 1.5 s to import: a wrong flag is told before that.
        import torch  # noqa: F401

        startup.end("imports")
        from kernels import native  # noqa: F401

        startup.end("native_libraries")
        from worker_engine.server import create_app
        from worker_engine.service import Service

        tracing = Tracing.start("graftwork-worker", environment)
        startup.end("imports")
        service = Service(config, startup, tokenizer_of(config.model))
    except (ConfigError, TracingUnavailable) as error:
        print(f"worker_engine: {error}", file=sys.stderr)
        return 2
    # The engine's thread takes the interpreter back within 0.5 ms instead of 5 ms between two operations.
    sys.setswitchinterval(0.0005)
    try:
        asyncio.run(_serve(create_app(service, tracing), service, config))
    except ConfigError as error:
        print(f"worker_engine: {error}", file=sys.stderr)
        return 2
    finally:
        if tracing is not None:
            tracing.close()
    return 0
