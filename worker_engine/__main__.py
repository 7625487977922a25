"""`python -m worker_engine`: serve one base model. SageMaker starts it with `serve` before the flags."""

from __future__ import annotations

import logging
import os
import sys

from worker_engine.errors import ConfigError
from worker_engine.program import run
from worker_engine.sagemaker.container import expand_arguments
from worker_engine.startup import Startup
from worker_engine.zygote.handover import VARIABLE, hand_over


def main() -> int:
    """Run the worker in this process, or in a fork of the zygote that `GRAFTWORK_WORKER_ZYGOTE` names."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        arguments = expand_arguments(sys.argv[1:], os.environ)
    except ConfigError as error:
        print(f"worker_engine: {error}", file=sys.stderr)
        return 2
    if path := os.environ.get(VARIABLE):
        status = hand_over(path, arguments)
        if status is not None:
            return status
    return run(arguments, os.environ, Startup())


if __name__ == "__main__":
    sys.exit(main())
