"""`python -m worker_engine`: the worker's composition root."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from worker_engine.config import EngineConfig
from worker_engine.errors import ConfigError


def parse_config(arguments: Sequence[str], environment: Mapping[str, str]) -> EngineConfig:
    """Flags carry EngineConfig's names; the token and the S3 endpoint come from the environment.

    Raises:
        ConfigError: a value is malformed.
        SystemExit: a flag is unknown or lacks its value.
    """
    parser = argparse.ArgumentParser(prog="python -m worker_engine", description="Serves one base model.")
    secret = {"fleet_token", "s3_endpoint_url"}
    kinds = {"Path": Path, "int": int, "float": float, "str": str}
    for item in fields(EngineConfig):
        if item.name not in secret:
            flag = f"--{item.name.replace('_', '-')}"
            required = item.name in ("model", "served_model_name")
            parser.add_argument(
                flag, type=kinds[str(item.type)], required=required, default=argparse.SUPPRESS
            )
    return EngineConfig(
        **vars(parser.parse_args(arguments)),
        fleet_token=environment.get("GRAFTWORK_FLEET_TOKEN", ""),
        s3_endpoint_url=environment.get("GRAFTWORK_S3_ENDPOINT_URL") or None,
    )


def main() -> int:
    """Serves until SIGINT or SIGTERM. Exit status 2 when the configuration or checkpoint is wrong."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        config = parse_config(sys.argv[1:], os.environ)
        # Torch takes 1.5 s to import: a wrong flag is told before that.
        from aiohttp import web

        from worker_engine.server import create_app
        from worker_engine.service import Service

        service = Service(config)
    except ConfigError as error:
        print(f"worker_engine: {error}", file=sys.stderr)
        return 2
    # The engine's thread takes the interpreter back within 0.5 ms instead of 5 ms between two operations.
    sys.setswitchinterval(0.0005)
    web.run_app(
        create_app(service),
        host=config.host,
        port=config.port,
        print=lambda text: logging.getLogger("worker_engine").info(text.splitlines()[0]),
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=2.0,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
