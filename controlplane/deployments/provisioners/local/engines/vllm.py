"""vLLM: `vllm serve` of an installation of its own, named by GRAFTWORK_VLLM."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import ClassVar, Final

import httpx
from django.conf import settings

from contracts.vllm_metrics import VllmMetrics
from controlplane.deployments.containers.images import VLLM_SERVER
from controlplane.deployments.containers.options import VLLM_FLAG, VLLM_VARIABLES, LmiOptions
from controlplane.deployments.containers.vllm import vllm_flags
from controlplane.deployments.models import Copy
from controlplane.deployments.provisioners.base import Desired, ProvisioningError, State
from controlplane.deployments.provisioners.local.engines.base import Launch, LocalEngine
from controlplane.deployments.provisioners.local.processes import Process
from controlplane.platform.child_environment import inherited

_DRAIN_SECONDS: Final = 20.0


class VllmEngine(LocalEngine):
    """Gateways have it load adapters at runtime.

    It downloads nothing into `--download-dir`, since the checkpoint is a folder.
    """

    name: ClassVar[str] = "vllm"
    title: ClassVar[str] = "vLLM"
    flag_variables: ClassVar[str] = VLLM_FLAG
    folder_flag: ClassVar[str] = "--download-dir"
    program: ClassVar[str] = "serve"
    copy_kind: ClassVar[str] = Copy.Kind.OPENAI_HTTP
    loads_adapters: ClassVar[bool] = True
    has_token: ClassVar[bool] = True

    def model_flags(self, checkpoint: str) -> list[str]:
        return ["serve", checkpoint]

    def option_flags(self, state: Desired) -> list[str]:
        return vllm_flags(LmiOptions.from_values(state.options, VLLM_SERVER, hosting=state.hosting))

    def launch(self, state: Desired, folder: Path, address: str, port: int, token: str) -> Launch:
        named = settings.GRAFTWORK.vllm
        if (program := shutil.which(named)) is None:
            raise ProvisioningError(
                f"there is no program {named!r} on this host: install vLLM in an environment of its own, and "
                "set GRAFTWORK_VLLM of the Celery worker to its `vllm` program",
                code="no_vllm",
            )
        own = ["--host", address, "--port", str(port), self.folder_flag, str(folder)]
        own += ["--shutdown-timeout", f"{_DRAIN_SECONDS:.0f}", "--disable-uvicorn-access-log"]
        environment = inherited(*VLLM_VARIABLES) | {
            # The token is no flag, since every user of the host can read a process's arguments.
            "VLLM_API_KEY": token,
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            **self.variables(state),
        }
        # vLLM's environment, not the control plane's, has the packages.
        for name in ("PYTHONPATH", "VIRTUAL_ENV"):
            environment.pop(name, None)
        return Launch([program, *self.flags(state), *own], environment)

    def checkpoint_of(self, process: Process) -> str:
        return process.option("serve")

    def drain_seconds_of(self, process: Process) -> float:
        return _DRAIN_SECONDS

    def state(self, http: httpx.Client, url: str) -> tuple[State, bool]:
        try:
            answer = http.get(f"{url}/health")
        except httpx.HTTPError as error:
            return State.STARTING, isinstance(error, httpx.TimeoutException)
        # 503: the engine behind the server has died, and the server is about to end.
        return (State.READY if answer.is_success else State.LEAVING), False

    def pending(self, http: httpx.Client, url: str) -> int | None:
        try:
            return VllmMetrics.parse(http.get(f"{url}/metrics").content).pending
        except (httpx.HTTPError, ValueError):
            return None
