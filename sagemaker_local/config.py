"""The operator's configuration, read once from `--config` and the environment."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Self

from sagemaker_local.aws.signature import AccessKey
from sagemaker_local.state import ConfigError, Endpoint

DEFAULT_KEY: Final = AccessKey("local", "local-secret")


@dataclass(frozen=True, slots=True)
class Durations:
    """Least durations of states, in seconds of the clock; containers add their own start time."""

    endpoint: float = 0.0
    instance: float = 0.0
    component: float = 0.0
    deleting: float = 0.0
    job: float = 0.0


@dataclass(frozen=True, slots=True)
class Config:
    """The configuration file; every field is optional.

    Attributes:
        admin_token: bearer token of the `/_local` routes, which are off without it.
        allowed_hosts: accepted `Host` names, in addition to `localhost` and IP addresses.
        endpoints: endpoints in front of running containers, known only to the runtime.
        part_bytes: size of the parts into which container output is cut; 0 leaves it unchanged.
        rates: operations a second, by name and with "*" for all others; excess calls are throttled.
        quotas: most running instances of a type, by type and with "*" for all others.
        capacity: instances of a type that AWS has to give, by type; any number of the others.
        component_quota: most inference components of one endpoint; None for any number.
        instance_types: further types, or other sizes: `{"accelerators", "cpus", "memory_mib"}`.
        images: the command of containers whose image begins with the key; docs/sagemaker-local.md.
        s3_endpoint_url: the S3 with the artifacts; None for this server's own S3.
        state_file: file that keeps resources across restarts; None for memory only.
        work_dir: artifacts and logs of copies; None for a temporary folder.
    """

    region: str = "us-east-1"
    keys: tuple[AccessKey, ...] = (DEFAULT_KEY,)
    admin_token: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    endpoints: Mapping[str, Endpoint] = field(default_factory=dict)
    part_bytes: int = 0
    clock_running: bool = True
    durations: Durations = Durations()
    rates: Mapping[str, float] = field(default_factory=dict)
    quotas: Mapping[str, int] = field(default_factory=dict)
    capacity: Mapping[str, int] = field(default_factory=dict)
    component_quota: int | None = None
    instance_types: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    images: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    s3_endpoint_url: str | None = None
    state_file: Path | None = None
    work_dir: Path | None = None

    @classmethod
    def load(cls, path: Path | None, environment: Mapping[str, str] = os.environ) -> Self:
        """Load the configuration. Raises ConfigError with the fault."""
        values: dict[str, Any] = {
            "region": environment.get("AWS_DEFAULT_REGION", "us-east-1"),
            "s3_endpoint_url": environment.get("GRAFTWORK_S3_ENDPOINT_URL") or None,
            "admin_token": environment.get("SAGEMAKER_LOCAL_ADMIN_TOKEN") or None,
        }
        if environment.get("AWS_ACCESS_KEY_ID"):
            values["keys"] = (
                AccessKey(
                    environment["AWS_ACCESS_KEY_ID"],
                    environment.get("AWS_SECRET_ACCESS_KEY", ""),
                    environment.get("AWS_SESSION_TOKEN") or None,
                ),
            )
        if path is None:
            return cls(**values)
        try:
            given = json.loads(path.read_text())
            known = {item.name for item in fields(cls)} - {"keys"} | {"credentials"}
            if unknown := set(given) - known:
                raise ConfigError(f"unknown fields {sorted(unknown)}; known are {sorted(known)}")
            return cls(
                **values | {_FIELDS.get(name, name): _read(name, value) for name, value in given.items()}
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path}: {error!r}; see docs/sagemaker-local.md") from error


_FIELDS: Final = {"credentials": "keys"}


def _read(name: str, value: Any) -> Any:
    match name:
        case "credentials":
            return tuple(AccessKey(**key) for key in value)
        case "endpoints":
            return {key: Endpoint.from_dict(item) for key, item in value.items()}
        case "durations":
            return Durations(**value)
        case "images":
            return {key: tuple(command) for key, command in value.items()}
        case "admin_token" if value is not None and not (isinstance(value, str) and value):
            raise ValueError("admin_token is a text that is not empty")
        case "allowed_hosts":
            if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
                raise ValueError("allowed_hosts is a list of names")
            return tuple(value)
        case "state_file" | "work_dir":
            return None if value is None else Path(value)
    return value
