"""All records, in memory and, if configured, in a file."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from sagemaker_local.aws_errors import ValidationException
from sagemaker_local.clock import Clock
from sagemaker_local.config import Config
from sagemaker_local.resources.records import MODEL, ComponentRecord, EndpointRecord, JobRecord, Kind, Record
from sagemaker_local.state import ACCOUNT_ID

log = logging.getLogger(__name__)
R = TypeVar("R", bound=Record)


@dataclass(slots=True)
class Store:
    """Records by name, with one dictionary per kind."""

    models: dict[str, Record] = field(default_factory=dict)
    configs: dict[str, Record] = field(default_factory=dict)
    endpoints: dict[str, EndpointRecord] = field(default_factory=dict)
    components: dict[str, ComponentRecord] = field(default_factory=dict)
    jobs: dict[str, JobRecord] = field(default_factory=dict)
    workloads: dict[str, Record] = field(default_factory=dict)
    benchmarks: dict[str, JobRecord] = field(default_factory=dict)
    recommendations: dict[str, JobRecord] = field(default_factory=dict)
    scaling: dict[str, Any] = field(default_factory=dict)
    """Application Auto Scaling's records, by kind."""

    def all(self) -> Iterator[Record]:
        for name in _KINDS:
            yield from getattr(self, name).values()

    def save(self, path: Path) -> None:
        """Replace the file atomically, so that a crash leaves the old or the new one."""
        text = json.dumps({name: getattr(self, name) for name in self.__slots__}, default=asdict)
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(path.name + ".new")
        new.write_text(text)
        os.replace(new, path)

    @classmethod
    def load(cls, path: Path) -> Store:
        """Load a file. Raises ValueError, KeyError, TypeError or OSError if it is invalid."""
        values = json.loads(path.read_text())
        kinds = {name: kind for name, kind in _KINDS.items() if name in values}
        records: dict[str, Any] = {
            name: {key: kind(**item) for key, item in values[name].items()} for name, kind in kinds.items()
        }
        return cls(**records, scaling=values.get("scaling", {}))


_KINDS: Final[Mapping[str, type[Record]]] = {
    "models": Record,
    "configs": Record,
    "endpoints": EndpointRecord,
    "components": ComponentRecord,
    "jobs": JobRecord,
    "workloads": Record,
    "benchmarks": JobRecord,
    "recommendations": JobRecord,
}


class Region:
    """One account's region, which all control plane operations share."""

    def __init__(self, config: Config, clock: Clock, store: Store) -> None:
        self.config, self.clock, self.store = config, clock, store
        self._tasks: set[asyncio.Task[None]] = set()

    def arn(self, kind: Kind, name: str) -> str:
        return f"arn:aws:sagemaker:{self.config.region}:{ACCOUNT_ID}:{kind.path}/{name.lower()}"

    def get(self, records: Mapping[str, R], kind: Kind, name: str) -> R:
        """Return a record. Raises ApiError, SageMaker's for a missing resource of the kind."""
        if (record := records.get(name)) is None:
            raise kind.missing(name, self.arn(kind, name))
        return record

    def model(self, name: str) -> Record:
        """Return a model. Raises ValidationException."""
        return self.get(self.store.models, MODEL, name)

    def changed(self) -> None:
        """Save the records; call it after each change."""
        if self.config.state_file is not None:
            self.store.save(self.config.state_file)

    def touch(self, record: Record, status: str, failure: str = "") -> None:
        """Change a resource's status."""
        record.status, record.failure, record.modified = status, failure[:1024], self.clock.now()
        self.changed()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine that outlives the operation that started it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def close(self) -> None:
        """Cancel the running tasks."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a resource's life ended with an error", exc_info=error)


def is_taken(records: Mapping[str, Record], arn: str) -> bool:
    """Return True if a resource has the ARN, which is in lower case: names differ by more than case."""
    return any(record.arn == arn for record in records.values())


def tags(request: dict[str, Any]) -> dict[str, str]:
    """Remove and return an input's tags. Raises ValidationException if a key occurs twice."""
    given = request.pop("Tags", [])
    by_key = {tag["Key"]: tag["Value"] for tag in given}
    if len(by_key) < len(given):
        raise ValidationException("Duplicate tag keys found. Each key must be unique.")
    return by_key
