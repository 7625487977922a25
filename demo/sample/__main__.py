"""`python -m demo.sample add|remove`: sample data in the database that GRAFTWORK_DATABASE_URL names."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import django

django.setup()

from django.utils import timezone  # noqa: E402

from controlplane.catalog.models import BaseModel  # noqa: E402
from demo.sample.clock import acting_as_sample  # noqa: E402
from demo.sample.history import history_add  # noqa: E402
from demo.sample.measured import deployment_add, optimization_add  # noqa: E402
from demo.sample.removal import sample_remove  # noqa: E402

_ADDED: Final = "added"
_REMOVED: Final = "removed"
_NICE: Final = 10
"""Lower the priority, so that the demo's own processes answer first."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Add the sample data once, or remove it for good; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m demo.sample", description="Sample data of the demo.")
    parser.add_argument("action", choices=("add", "remove"))
    parser.add_argument("--base-model", required=True)
    parser.add_argument("--state", type=Path, required=True, help="file that records what was done")
    options = parser.parse_args(arguments)
    os.nice(_NICE)
    if options.action == "remove":
        sample_remove()
        options.state.write_text(_REMOVED)
        print("sample data removed")
        return 0
    if options.state.exists():
        return 0
    base_model, started = BaseModel.objects.get(name=options.base_model), time.monotonic()
    history_add(base_model=base_model, now=timezone.now())
    with acting_as_sample():
        deployment_add(base_model=base_model)
    print(f"history added after {time.monotonic() - started:.1f} s", flush=True)
    with acting_as_sample():
        optimization_add(base_model=base_model)
    options.state.write_text(_ADDED)
    print(f"optimization measured after {time.monotonic() - started:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
