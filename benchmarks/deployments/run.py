"""The life of many adapters: deployed, requested continuously, updated and removed without leftovers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from benchmarks.deployments.callers import Callers, ExpectedAnswers, Tally
from benchmarks.deployments.checkpoints import adapter_files, write_model
from benchmarks.deployments.plant import BUCKET, REGION, Plant, Staff, running
from benchmarks.processes import wait_until

BASES: Final = ("harbor", "meadow")
ALIAS: Final = "prod"
_CALLERS: Final = 4
_PATIENCE: Final = 3600.0
"""Seconds that a phase may take; the machine may be slow."""
_INSTANCE: Final = "ml.g5.12xlarge"
_LEAVING: Final = 25
"""Adapters that are removed together, while requests for the others continue."""


@dataclass(slots=True)
class Outcome:
    """The result of a run.

    Attributes:
        seconds: by phase.
        tally: the results of the requests.
        answers: distinct first answers, of all versions that were served.
        served: number of versions that were served.
        steps: the control plane's journal, summed.
        left: resources left in the account at the end, by kind.
    """

    adapters: int
    seconds: dict[str, float] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)
    answers: int = 0
    served: int = 0
    steps: dict[str, dict[str, int]] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)


def life(
    folder: Path,
    database_url: str,
    *,
    adapters: int,
    sagemaker: Mapping[str, Any],
    tell: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Do one run in `folder`, on a migrated and empty database.

    Args:
        sagemaker: rates and quotas for the local SageMaker's configuration.
        tell: called with progress messages.

    Raises:
        TimeoutError: a resource does not appear, or does not disappear.
    """
    folders = {
        name: write_model(folder / "models" / name, seed=seed) for seed, name in enumerate(BASES, start=1)
    }
    with contextlib.ExitStack() as stack:
        plant = stack.enter_context(running(folder, database_url, sagemaker=sagemaker))
        staff = stack.enter_context(contextlib.closing(Staff(plant, folder / "staff.log")))
        key = staff.ask(
            "prepare",
            sagemaker=plant.sagemaker,
            region=REGION,
            store=f"s3://{BUCKET}/graft",
            bases={name: str(path) for name, path in folders.items()},
        )
        callers = stack.enter_context(Callers(plant.gateway, key, _CALLERS))
        run = _Life(plant, staff, callers, key, adapters, tell)
        stack.enter_context(contextlib.closing(run))
        return run.through()


class _Life:
    def __init__(
        self,
        plant: Plant,
        staff: Staff,
        callers: Callers,
        key: str,
        adapters: int,
        tell: Callable[[str], None],
    ) -> None:
        self._plant, self._staff, self._callers, self._tell = plant, staff, callers, tell
        self._api = httpx.Client(
            base_url=f"{plant.web}/api/v1",
            headers={"Authorization": f"Bearer {key}"},
            timeout=60,
            trust_env=False,
        )
        self._names = [f"bot-{number:03}" for number in range(adapters)]
        self._outcome = Outcome(adapters, tally=callers.tally)
        self._texts: list[str] = []
        self._told = 0.0

    def close(self) -> None:
        self._api.close()

    def through(self) -> Outcome:
        """Run all phases in order."""
        outcome = self._outcome
        with self._phase("bases"):
            self._staff.ask("deploy", bases=BASES, instance_type=_INSTANCE)
            self._until(lambda snapshot: all(row[0] == "serving" for row in snapshot["deployments"].values()))
            self._in_force()
            for base in BASES:
                self._callers.known[base] = ExpectedAnswers(base, {0: self._callers.learn(base)})
        with self._phase("deploy"):
            self._bring(version=1)
        with self._phase("update"):
            self._bring(version=2)
        with self._phase("settled"):
            # Old versions are being removed while the load continues.
            self._until(lambda snapshot: snapshot["placements"] == {"ready": len(self._names)})
        with self._phase("remove"):
            for start in range(0, len(self._names), _LEAVING):
                self._delete_adapters(self._names[start : start + _LEAVING])
            self._until(lambda snapshot: not snapshot["placements"])
        with self._phase("bases removed"):
            self._callers.known.clear()
            self._staff.ask("remove")
            self._until(lambda snapshot: all(row[2] for row in snapshot["deployments"].values()))
        outcome.answers, outcome.served = len(set(self._texts)), len(self._texts)
        outcome.steps = self._staff.ask("steps")
        outcome.left = {
            kind: len(found) for kind, found in self._plant.remaining_resources().items() if found
        }
        return outcome

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        self._callers.phase, began = name, time.monotonic()
        yield
        self._outcome.seconds[name] = time.monotonic() - began
        self._tell(
            f"{name}: {self._outcome.seconds[name]:.1f} s, {self._callers.tally.requests[name]} requests"
        )

    def _bring(self, *, version: int) -> None:
        """Register the next version of every adapter, and request each as soon as it is served."""
        waiting = set(self._names)
        with ThreadPoolExecutor(2) as pool:
            sent = [
                pool.submit(self._register, number, name, version) for number, name in enumerate(self._names)
            ]

            def some_came(snapshot: dict[str, Any]) -> bool:
                ready = {name for name, number in snapshot["ready"] if number == version} & waiting
                if ready:
                    self._take_over(sorted(ready), version)
                    waiting.difference_update(ready)
                return not waiting

            self._until(some_came)
            for each in sent:
                each.result()

    def _register(self, number: int, name: str, version: int) -> None:
        files = adapter_files(seed=1000 * version + number)
        self._api.post(
            "/adapters",
            data={"name": name, "base_model": BASES[number % len(BASES)]},
            files=[("files", (file, content)) for file, content in files.items()],
        ).raise_for_status()

    def _take_over(self, names: Sequence[str], version: int) -> None:
        """Move the adapters' aliases to `version`, which is served, and delete the previous version."""
        known = self._callers.known
        coming: dict[str, ExpectedAnswers] = {}
        for name in names:
            text = self._callers.learn(f"{name}@v{version}")
            self._texts.append(text)
            asked = known.get(name) or coming.setdefault(name, ExpectedAnswers(f"{name}@{ALIAS}", {}))
            asked.moved, asked.texts[version] = 0.0, text
            path = f"/adapters/{name}/aliases/{ALIAS}"
            self._api.put(path, json={"version": version}).raise_for_status()
            asked.moved = time.monotonic()
        self._in_force()
        known.update(coming)
        if version > 1:
            for name in names:
                del known[name].texts[version - 1]
                self._api.delete(f"/adapters/{name}/versions/{version - 1}").raise_for_status()

    def _delete_adapters(self, names: Sequence[str]) -> None:
        """Stop requesting the adapters, then delete them; running requests may finish."""
        for name in names:
            del self._callers.known[name]
        # A request chosen before the removal has been sent by now.
        time.sleep(0.2)
        for name in names:
            self._api.delete(f"/adapters/{name}").raise_for_status()

    def _in_force(self) -> None:
        """Wait until the gateway uses the current routes."""
        version = self._staff.ask("snapshot")["routes"]
        wait_until(lambda: self._plant.routes_version() >= version, seconds=60, name="routes", pause=0.05)

    def _until(self, state: Callable[[dict[str, Any]], bool]) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not state(snapshot := self._staff.ask("snapshot")):
            if time.monotonic() > self._told + 10:
                self._told = time.monotonic()
                self._tell(f"  {snapshot['placements']} {snapshot['deployments']}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self._callers.phase}: still {snapshot['deployments']}")
            time.sleep(0.3)
