"""The bundled worker: `python -m worker_engine`, with the interpreter of this process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import ClassVar, Final

import httpx
from django.conf import settings

from controlplane.deployments.containers.images import BUNDLED_WORKER
from controlplane.deployments.containers.options import WORKER_VARIABLES, LmiOptions
from controlplane.deployments.containers.worker import worker_flags
from controlplane.deployments.models import Copy
from controlplane.deployments.provisioners.base import Desired, State
from controlplane.deployments.provisioners.local.engines.base import Launch, LocalEngine
from controlplane.deployments.provisioners.local.processes import Process
from controlplane.platform.child_environment import inherited

_DRAIN_SECONDS: Final = 20.0
"""The worker's default for `--drain-seconds`."""


class WorkerEngine(LocalEngine):
    """Requests bring the adapter's reference with them."""

    name: ClassVar[str] = "worker"
    title: ClassVar[str] = "a worker"
    flag_variables: ClassVar[str] = "GRAFTWORK_WORKER_FLAG_"
    folder_flag: ClassVar[str] = "--adapter-cache-dir"
    program: ClassVar[str] = "worker_engine"
    copy_kind: ClassVar[str] = Copy.Kind.WORKER
    loads_adapters: ClassVar[bool] = False
    has_token: ClassVar[bool] = False

    def model_flags(self, checkpoint: str) -> list[str]:
        return ["--model", checkpoint]

    def option_flags(self, state: Desired) -> list[str]:
        return worker_flags(LmiOptions.from_values(state.options, BUNDLED_WORKER))

    def launch(self, state: Desired, folder: Path, address: str, port: int, token: str) -> Launch:
        own = ["--host", address, "--port", str(port), self.folder_flag, str(folder)]
        command = [sys.executable, "-m", self.program, *self.flags(state), *own]
        return Launch(command, inherited_environment() | self.variables(state))

    def checkpoint_of(self, process: Process) -> str:
        return process.option("--model")

    def drain_seconds_of(self, process: Process) -> float:
        return float(process.option("--drain-seconds") or _DRAIN_SECONDS)

    def state(self, http: httpx.Client, url: str) -> tuple[State, bool]:
        try:
            answer = http.get(f"{url}/ping")
            status = answer.json().get("status")
        except (httpx.HTTPError, ValueError) as error:
            return State.STARTING, isinstance(error, httpx.TimeoutException)
        if answer.status_code == httpx.codes.OK:
            return State.READY, False
        return State.LEAVING if status in ("draining", "stopping") else State.STARTING, False

    def pending(self, http: httpx.Client, url: str) -> int | None:
        headers = {"authorization": f"Bearer {settings.GRAFTWORK.fleet_token}"}
        try:
            return int(http.get(f"{url}/load", headers=headers).json()["pending"])
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return None


def inherited_environment() -> dict[str, str]:
    """Return the inherited variables that a worker needs; the only secret is the fleet token."""
    return {**inherited(*WORKER_VARIABLES), "GRAFTWORK_FLEET_TOKEN": settings.GRAFTWORK.fleet_token}
