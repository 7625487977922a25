"""The operations that are alike for every kind of resource, and for every kind of job."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, TypeVar

from sagemaker_local.aws.json_service import Handler
from sagemaker_local.aws_errors import ValidationException
from sagemaker_local.resources.listing import page
from sagemaker_local.resources.records import JobRecord, Kind, Record
from sagemaker_local.resources.store import Region, is_taken

R = TypeVar("R", bound=Record)


class Collection(ABC, Generic[R]):
    """The resources of one kind, with the operations to create, describe, list and delete them."""

    def __init__(self, region: Region, kind: Kind, records: dict[str, R]) -> None:
        self._region, self._kind, self._records = region, kind, records

    @property
    def operations(self) -> dict[str, Handler]:
        noun = self._kind.noun
        return {
            f"Create{noun}": self.create,
            f"Describe{noun}": self.describe,
            f"List{noun}s": self.list_all,
            f"Delete{noun}": self.delete,
        }

    @abstractmethod
    async def create(self, request: dict[str, Any]) -> dict[str, Any]: ...

    async def describe(self, request: dict[str, Any]) -> dict[str, Any]:
        record = self._get(request)
        return {**record.spec, **self._named(record), "CreationTime": record.created}

    async def list_all(self, request: dict[str, Any]) -> dict[str, Any]:
        records, more = page(self._records.values(), request)
        return {f"{self._kind.noun}s": [self._summary(record) for record in records], **more}

    async def delete(self, request: dict[str, Any]) -> dict[str, Any] | None:
        record = self._get(request)
        del self._records[record.name]
        self._region.changed()
        return self._named(record) if self._kind.is_ai else None

    def _named(self, record: R) -> dict[str, Any]:
        return {f"{self._kind.noun}Arn": record.arn}

    def _summary(self, record: R) -> dict[str, Any]:
        name = {f"{self._kind.noun}Name": record.name}
        return name | self._named(record) | {"CreationTime": record.created}

    def _new_name(self, request: dict[str, Any]) -> tuple[str, str]:
        """Return the name and the ARN of a resource to create. Raises ApiError if it exists."""
        name = str(request[f"{self._kind.noun}Name"])
        arn = self._region.arn(self._kind, name)
        if is_taken(self._records, arn):
            raise self._kind.existing(name, arn)
        return name, arn

    def _add(self, record: R) -> dict[str, Any]:
        """Store a new record; return the answer that names it."""
        self._records[record.name] = record
        self._region.changed()
        return self._named(record)

    def _get(self, request: dict[str, Any]) -> R:
        """Return the record that the request names. Raises ApiError."""
        return self._region.get(self._records, self._kind, request[f"{self._kind.noun}Name"])


class Jobs(Collection[JobRecord]):
    """Jobs of one kind: each runs when it is created, until it ends or is stopped."""

    ENDED: ClassVar[frozenset[str]]
    STOPPING: ClassVar[str]
    STOPPED: ClassVar[str]

    def __init__(self, region: Region, kind: Kind, records: dict[str, JobRecord]) -> None:
        super().__init__(region, kind, records)
        self._lives: dict[str, asyncio.Task[None]] = {}

    @property
    def operations(self) -> dict[str, Handler]:
        return super().operations | {f"Stop{self._kind.noun}": self.stop}

    async def stop(self, request: dict[str, Any]) -> dict[str, Any] | None:
        job = self._get(request)
        if job.status in self.ENDED or job.status == self.STOPPING:
            raise ValidationException(f"{self._kind.title} {job.name} is {job.status} and cannot be stopped.")
        self._lives[job.name].cancel()
        self._region.touch(job, self.STOPPING)
        self._lives[job.name] = self._region.spawn(self._stopped(job))
        return self._named(job) if self._kind.is_ai else None

    async def delete(self, request: dict[str, Any]) -> dict[str, Any] | None:
        job = self._get(request)
        if job.status not in self.ENDED:
            raise ValidationException(f"{self._kind.title} {job.name} is {job.status}: stop it first.")
        return await super().delete(request)

    def revive(self) -> None:
        """Resume the jobs that were running when the server ended."""
        for job in self._records.values():
            if job.status not in self.ENDED:
                self._start(job)

    def _start(self, job: JobRecord) -> None:
        self._lives[job.name] = self._region.spawn(self._run(job))

    @abstractmethod
    async def _run(self, job: JobRecord) -> None:
        """Bring a job to its end."""

    async def _stopped(self, job: JobRecord) -> None:
        await self._region.clock.sleep(self._region.config.durations.deleting)
        job.ended = self._region.clock.now()
        self._region.touch(job, self.STOPPED)
