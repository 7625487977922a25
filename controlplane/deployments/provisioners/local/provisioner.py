"""Copies as processes on the host of the control plane's Celery worker, of any engine in `engines`.

Each process has a folder as an argument that names the deployment, a digest of its start-up flags, and its
number; by these the process is found again. Requests load adapters on demand.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import httpx

from contracts.server_credentials import ServerCredentials
from controlplane.deployments.models import Deployment, Target
from controlplane.deployments.provisioners.base import (
    Desired,
    Endpoint,
    Observation,
    Progress,
    ProvisioningError,
    Resource,
    Share,
    State,
    Step,
)
from controlplane.deployments.provisioners.local.engines import ENGINES, engine_of
from controlplane.deployments.provisioners.local.engines.base import LocalEngine, state_digest
from controlplane.deployments.provisioners.local.marks import Mark, Marks
from controlplane.deployments.provisioners.local.processes import (
    Process,
    end,
    end_session,
    processes,
    start_detached,
)
from controlplane.errors import UnsealError
from controlplane.platform.environment import ROOT, VAR
from controlplane.platform.http.tls import tls_context

_COPY: Final = re.compile(r"([0-9a-f]{8})-([0-9]{1,3})")
_PING_SECONDS: Final = 2.0
_FRESH_SECONDS: Final = 600.0
"""A copy that ended sooner than this after its start, and was never ready, cannot start."""
_HUNG_SECONDS: Final = 240.0
"""A serving copy that stays silent this long after its drain time counts as hung."""
_CRASHES: Final = 5
"""Unexpected exits within `_FRESH_SECONDS` after which a copy is not restarted at once."""
_LONGEST_SECONDS: Final = 3600.0
"""Longest wait of gateways for an answer; a longer request on a copy outside the routes is cut."""
_KILL_SECONDS: Final = 40.0
_STARTING_SECONDS: Final = 30.0
"""Time after the drain time until a copy that was asked to end is killed."""


@dataclass(frozen=True, slots=True)
class LocalCopy:
    """A running process; `silent`: it did not answer in time when it was asked for its state."""

    engine: LocalEngine
    process: Process
    digest: str
    number: int
    url: str
    state: State
    silent: bool = False

    @property
    def name(self) -> str:
        return f"{self.digest}-{self.number}"


class LocalProvisioner:
    """Runs copies as processes of this host; `root` holds their adapters' files and logs."""

    def __init__(self, target: Target, desired: Desired, *, root: Path) -> None:
        self._target, self._desired = target, desired
        self._root = root / "deployments" / desired.deployment
        self._marks = Marks(self._root)
        self._digest = _digest_of(desired)
        self._stage = desired.stage
        self._before = "" if desired.stage is None else _digest_of(desired.stage.before)
        self._http = httpx.Client(timeout=_PING_SECONDS, trust_env=False, verify=tls_context())

    @classmethod
    def from_target(cls, target: Target, desired: Desired, *, heartbeat: Callable[[], None]) -> Self:
        """Return the provisioner. Raises ProvisioningError on any other host than the target's."""
        if target.host != (here := socket.gethostname()):
            raise ProvisioningError(
                f"this host is {here}, not the target {target.host}: run a Celery worker there",
                transient=True,
                wait=15.0,
                code="other_host",
            )
        return cls(target, desired, root=VAR)

    def observe(self) -> Observation:
        copies, wanted, stage = self._copies(), self._desired.min_copies, self._stage
        current = [copy for copy in copies if copy.digest == self._digest]
        ready = [copy for copy in current if copy.state is State.READY][: self._target_copies]
        routed = ready if stage is None else ready[: stage.routed_copies]
        missing = wanted - len(routed)
        # While new copies start, those of the previous state go on serving.
        others = [copy for copy in copies if copy not in ready and copy.state is State.READY]
        rolling_back = stage is not None and stage.rolling_back and routed
        if self._share is not None:
            older = [copy for copy in others if copy.digest == self._before][:wanted]
        else:
            older = [] if rolling_back else others[:missing]
        serving = routed + older
        starting = [copy for copy in current if copy.state is State.STARTING]
        # Keep silent copies in the routes: a busy host may only be slow to answer.
        enough = wanted if stage is None or self._share is None else wanted + stage.routed_copies
        silent = [copy for copy in copies if copy.silent] if len(serving) < enough else []
        waiting = (
            f"{len(starting)} copies are loading the model or are too busy to respond" if starting else ""
        )
        if not missing and len(copies) > len(ready):
            waiting = "surplus copies are finishing their last requests"
        whole = not missing and len(copies) == len(ready)
        failed = "" if starting else "; ".join(self._died(number) for number in self._dead(copies))
        return Observation(
            resources=tuple(self._resource(copy) for copy in copies),
            endpoints=tuple(self._route_endpoint(copy) for copy in [*serving, *silent]),
            waiting=waiting,
            complete=whole,
            copies_complete=whole,
            empty=not copies and not self._marks.any(),
            failed=failed,
            progress=Progress(
                len(ready), frozenset(copy.url for copy in routed), failed or self._crashed(copies)
            ),
            detail=copies,
        )

    def apply(self, seen: Observation) -> Iterator[Step]:
        copies: tuple[LocalCopy, ...] = seen.detail
        self._end_remains({copy.name for copy in copies})
        for copy in copies:
            self._marks.bound_log(copy.name)
        dead = () if self._desired.retry else self._dead(copies)
        for number in self._absent(copies):
            if number not in dead:
                yield self._start(self._desired, number)
        if (stage := self._stage) is not None and not stage.rolling_back:
            there = {copy.number for copy in copies if copy.digest == self._before}
            for number in range(self._previous_copies(seen)):
                if number not in there and not self._ended_early(f"{self._before}-{number}"):
                    yield self._start(stage.before, number)
        served = {endpoint.url for endpoint in seen.endpoints}
        for copy in copies:
            if not self._is_wanted(copy, seen) and copy.url not in served and self._may_end(copy):
                yield from self._stop(copy, "no longer wanted")
            elif copy.silent and self._desired.drained.get(copy.url, 0.0) > _HUNG_SECONDS:
                yield from self._stop(copy, "it hangs: no response for minutes")

    def remove(self, seen: Observation) -> Iterator[Step]:
        for copy in seen.detail:
            yield from self._stop(copy, "the deployment is being removed")
        if not seen.detail and self._marks.any():
            for session in self._marks.sessions().values():
                end_session(session)
            self._marks.remove_all()
            yield Step("remove_folder", str(self._root), "the deployment is being removed")

    def close(self) -> None:
        self._http.close()

    def _resource(self, copy: LocalCopy) -> Resource:
        return Resource(
            copy.engine.name,
            f"{copy.name} {copy.url} (process {copy.process.pid})",
            copy.state,
            ""
            if self._credentials(copy) is not None
            else "its token cannot be opened: GRAFTWORK_SEALING_KEYS no longer holds the key that sealed it; "
            "restore the key, or end the process, which is then started with a new token",
            has={"base": copy.engine.checkpoint_of(copy.process)},
            stale=copy.digest != self._digest,
        )

    def _route_endpoint(self, copy: LocalCopy) -> Endpoint:
        share = self._share if copy.digest == self._digest else None
        engine = copy.engine
        return Endpoint(
            engine.copy_kind,
            copy.url,
            engine.loads_adapters and self._desired.hosting != Deployment.Hosting.FUSED,
            silent=copy.silent,
            share=share,
            credentials=self._credentials(copy),
        )

    def _credentials(self, copy: LocalCopy) -> ServerCredentials | None:
        """Return the copy's token; None if it cannot be opened."""
        try:
            return ServerCredentials(self._marks.token(copy.name) if copy.engine.has_token else "")
        except UnsealError:
            return None

    @property
    def _share(self) -> Share | None:
        return None if self._stage is None else self._stage.share

    @property
    def _target_copies(self) -> int:
        """Number of copies of the desired state to run now."""
        return self._desired.min_copies if self._stage is None else self._stage.target_copies

    def _previous_copies(self, seen: Observation) -> int:
        """Return how many copies of the previous state must still run."""
        stage = self._stage
        if stage is None or stage.rolling_back:
            return 0
        wanted = self._desired.min_copies
        return wanted if stage.keep_old else wanted - min(seen.progress.ready_copies, stage.routed_copies)

    def _is_wanted(self, copy: LocalCopy, seen: Observation) -> bool:
        if copy.digest == self._digest:
            return copy.number < self._target_copies
        return copy.digest == self._before and copy.number < self._previous_copies(seen)

    def _may_end(self, copy: LocalCopy) -> bool:
        """Return True if the copy never served, or has no pending requests after leaving the routes."""
        if not (copy.silent or copy.state is State.READY):
            return True
        since = self._desired.drained.get(copy.url)
        if since is None:
            # It left the routes too recently, or became ready after it was no longer wanted.
            return copy.url not in self._desired.routed and copy.engine.pending(self._http, copy.url) == 0
        return since > _LONGEST_SECONDS or copy.engine.pending(self._http, copy.url) == 0

    def _copies(self) -> tuple[LocalCopy, ...]:
        found = []
        for process in processes():
            for engine in ENGINES:
                folder = engine.folder_of(process)
                named = _COPY.fullmatch(folder.name) if folder is not None else None
                if folder is None or named is None or folder.parent != self._root:
                    continue
                url = f"http://{self._target.address}:{process.option('--port')}"
                state, silent = engine.state(self._http, url)
                if state is State.READY:
                    self._marks.set(folder.name, Mark.READY)
                found.append(LocalCopy(engine, process, named[1], int(named[2]), url, state, silent))
        return tuple(sorted(found, key=lambda copy: (copy.number, copy.digest, copy.process.pid)))

    def _name(self, number: int) -> str:
        return f"{self._digest}-{number}"

    def _absent(self, copies: tuple[LocalCopy, ...]) -> list[int]:
        """Return the numbers of missing copies."""
        there = {copy.number for copy in copies if copy.digest == self._digest}
        return [number for number in range(self._target_copies) if number not in there]

    def _dead(self, copies: tuple[LocalCopy, ...]) -> list[int]:
        """Return the missing copies that ended by themselves: during start-up, or too often."""
        gone = [(number, self._name(number)) for number in self._absent(copies)]
        return [number for number, name in gone if self._ended_early(name) or self._crashes(name) >= _CRASHES]

    def _crashes(self, name: str) -> int:
        """Return how often a missing copy of this name crashed recently, including its last exit."""
        return self._marks.crashes(name, within=_FRESH_SECONDS) + self._marks.has_crashed(name)

    def _ended_early(self, name: str) -> bool:
        started = self._marks.age(name, Mark.STARTED)
        ended = (self._marks.age(name, mark) for mark in (Mark.READY, Mark.STOPPING))
        return started is not None and started < self._recent() and all(age is None for age in ended)

    def _recent(self) -> float:
        """Return the age in seconds from which a mark is outdated; call it after reading that mark."""
        stage = self._stage
        return _FRESH_SECONDS if stage is None else min(_FRESH_SECONDS, time.time() - stage.started_at)

    def _crashed(self, copies: tuple[LocalCopy, ...]) -> str:
        """Return which rollout copy crashed after it had served, with the end of its log; "" for none."""
        if self._stage is None:
            return ""
        for number in self._absent(copies):
            name = self._name(number)
            ready = self._marks.age(name, Mark.READY)
            age = time.time() - self._stage.started_at
            if ready is not None and self._marks.has_crashed(name) and ready < age:
                tail = self._marks.log_tail(name)
                return f"copy {number + 1} ended while it served. {self._marks.log(name)} ends:\n{tail}"
        return ""

    def _died(self, number: int) -> str:
        name = self._name(number)
        when = (
            "while it started" if self._ended_early(name) else f"{self._crashes(name)} times in ten minutes"
        )
        return (
            f"copy {number + 1} ended {when}: mend that and retry. {self._marks.log(name)} ends:\n"
            f"{self._marks.log_tail(name)}"
        )

    def _start(self, state: Desired, number: int) -> Step:
        engine = engine_of(state.image_family)
        name = f"{state_digest(engine, state)}-{number}"
        self._marks.clear(name)
        token = self._marks.new_token(name) if engine.has_token else ""
        address = self._target.address
        launch = engine.launch(state, self._root / name, address, _free_port(address), token)
        # A killed server may leave an engine process that still holds the device's memory.
        end_session(self._marks.session(name))
        session = start_detached(
            launch.command, log=self._marks.log(name), environment=launch.environment, cwd=ROOT
        )
        self._marks.set_session(name, session)
        self._marks.set(name, Mark.STARTED)
        cause = f"copy {number + 1} of {self._desired.min_copies} is missing"
        return Step(f"start_{engine.name}", name, cause)

    def _end_remains(self, running: Collection[str]) -> None:
        """End what copies without a main process have left, such as an engine that holds the device."""
        for name, session in self._marks.sessions().items():
            started = self._marks.age(name, Mark.STARTED)
            # A copy that has just started may not show its own command line yet.
            if name not in running and (started is None or started > _STARTING_SECONDS):
                end_session(session)
                self._marks.clear_session(name)

    def _stop(self, copy: LocalCopy, cause: str) -> Iterator[Step]:
        """Send one SIGTERM, since a second one cuts running requests; kill a copy that hangs."""
        stopping_for = self._marks.age(copy.name, Mark.STOPPING)
        patience = copy.engine.drain_seconds_of(copy.process) + _KILL_SECONDS
        if stopping_for is None:
            self._marks.set(copy.name, Mark.STOPPING)
            end(copy.process.pid)
            yield Step(f"stop_{copy.engine.name}", copy.name, cause)
        elif stopping_for > patience:
            end(copy.process.pid, at_once=True)
            yield Step(
                f"kill_{copy.engine.name}",
                copy.name,
                f"it has not stopped {stopping_for:.0f} s after the request",
            )


def _digest_of(state: Desired) -> str:
    return state_digest(engine_of(state.image_family), state)


def _free_port(address: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as listener:
        listener.bind((address, 0))
        return int(listener.getsockname()[1])
