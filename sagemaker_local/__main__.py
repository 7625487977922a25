"""`python -m sagemaker_local`: serves the local SageMaker on loopback."""

from __future__ import annotations

import argparse
import logging
import sys
from dataclasses import replace
from pathlib import Path

from aiohttp import web

from sagemaker_local.app import create
from sagemaker_local.config import Config
from sagemaker_local.state import ConfigError


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m sagemaker_local", description=__doc__)
    parser.add_argument("--config", type=Path, help="JSON; see docs/sagemaker-local.md")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8090)
    parser.add_argument("--state-file", type=Path, help="keeps resources over restarts; default: memory")
    parser.add_argument("--work-dir", type=Path, help="files of copies; default: a temporary folder")
    parser.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name under which clients reach the server, besides localhost and IP addresses",
    )
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    url = f"http://127.0.0.1:{arguments.port}"
    try:
        config = Config.load(arguments.config)
        given = {name: getattr(arguments, name) for name in ("state_file", "work_dir")}
        config = replace(config, **{name: path for name, path in given.items() if path is not None})
        config = replace(config, allowed_hosts=(*config.allowed_hosts, *arguments.allowed_host))
        # When a caller disconnects, its handler is cancelled, and with it the container's work.
        web.run_app(
            create(config, url=url),
            host=arguments.host,
            port=arguments.port,
            print=None,
            handler_cancellation=True,
        )
    except ConfigError as error:
        sys.exit(f"sagemaker_local: {error}")


if __name__ == "__main__":
    main()
