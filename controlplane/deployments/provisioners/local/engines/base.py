"""Contract of engines on a host: how a copy is started, found among processes, and asked for its state."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

import httpx

from controlplane.deployments.provisioners.base import Desired, ProvisioningError, State
from controlplane.deployments.provisioners.local.processes import Process


@dataclass(frozen=True, slots=True)
class Launch:
    """A process to start: its arguments, and its whole environment."""

    command: list[str]
    environment: dict[str, str]


class LocalEngine(Protocol):
    """One engine. Implementations keep no state, and inherit what all engines do alike.

    Attributes:
        title: in messages.
        flag_variables: start of the environment's variables that are flags; see `flags_of_environment`.
        folder_flag: flag whose value is the copy's folder, by which its process is found again.
        program: argument by which the process is told from others with that flag.
        name: in names of steps and resources.
        copy_kind: kind of the copies' routes.
        loads_adapters: gateways have the copy load adapters by `/v1/load_lora_adapter`.
        has_token: each copy takes a bearer token of its own; the others take the fleet token.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    flag_variables: ClassVar[str]
    folder_flag: ClassVar[str]
    program: ClassVar[str]
    copy_kind: ClassVar[str]
    loads_adapters: ClassVar[bool]
    has_token: ClassVar[bool]

    def flags(self, state: Desired) -> list[str]:
        """Return the start-up flags that define a copy of this state.

        Raises:
            ProvisioningError: the checkpoint is not in a folder of this host.
        """
        named = self.model_flags(checkpoint_folder(state, self.title))
        served = ["--served-model-name", state.served_name, *self.option_flags(state)]
        return [*named, *served, *flags_of_environment(state.environment, self.flag_variables)]

    def variables(self, state: Desired) -> dict[str, str]:
        """Return the process's variables from the deployment's environment, without its flags."""
        items = state.environment.items()
        return {name: value for name, value in items if not name.startswith(self.flag_variables)}

    def folder_of(self, process: Process) -> Path | None:
        """Return the folder of the copy that this process is; None for any other process."""
        folder = process.option(self.folder_flag)
        return Path(folder) if folder and self.program in process.arguments else None

    def model_flags(self, checkpoint: str) -> list[str]:
        """Return the arguments that name the checkpoint's folder."""

    def option_flags(self, state: Desired) -> list[str]:
        """Return the flags for the deployment's options."""

    def launch(self, state: Desired, folder: Path, address: str, port: int, token: str) -> Launch:
        """Return the process to start.

        Args:
            folder: the copy's own, by which `folder_of` recognizes the process.
            token: the copy's bearer token; "" for an engine without one.

        Raises:
            ProvisioningError: the engine is not installed on this host.
        """

    def checkpoint_of(self, process: Process) -> str:
        """Return the folder of the checkpoint that a copy's process serves."""

    def drain_seconds_of(self, process: Process) -> float:
        """Return how long the process goes on with running requests after SIGTERM."""

    def state(self, http: httpx.Client, url: str) -> tuple[State, bool]:
        """Return the copy's state, and True if it did not answer in time."""

    def pending(self, http: httpx.Client, url: str) -> int | None:
        """Return the number of pending requests; None if the copy does not report it."""


def state_digest(engine: LocalEngine, state: Desired) -> str:
    """Return the digest that names the copies of one state.

    It works without a checkpoint folder, for which `flags` raises, so that existing copies can be removed.
    """
    flags = engine.flags(state) if state.checkpoint.startswith("/") else []
    flags += [f"{name}={value}" for name, value in sorted(engine.variables(state).items())]
    return hashlib.sha256(json.dumps(flags, sort_keys=True).encode()).hexdigest()[:8]


def checkpoint_folder(state: Desired, engine: str) -> str:
    """Return the folder of the checkpoint. Raises ProvisioningError if it is elsewhere."""
    if not state.checkpoint.startswith("/"):
        raise ProvisioningError(
            f"{engine} on a host reads the checkpoint from a folder, and this base model's is "
            f"{state.checkpoint}: register it from a folder of that host"
        )
    return state.checkpoint


def flags_of_environment(environment: Mapping[str, str], prefix: str) -> list[str]:
    """Return the flags in a deployment's environment: `<prefix>MEMORY_GIB=0.5` is `--memory-gib 0.5`.

    An empty value is a flag without a value.
    """
    flags = []
    for name, value in sorted(environment.items()):
        if name.startswith(prefix):
            flags.append("--" + name.removeprefix(prefix).lower().replace("_", "-"))
            flags += [value] if value else []
    return flags
