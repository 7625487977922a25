"""The run's processes: started, killed by SIGKILL, and restarted."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import redis

from contracts.base_routes import BaseRoute, CopyRoute
from contracts.keys import KeyRoute
from contracts.limits import Limit, LimitsRoute, RateRoute, budget_key, budget_period
from contracts.route_table import RouteTable, TenantRoute
from demo.valkey import server_command

ROOT: Final = Path(__file__).resolve().parents[2]
KEY: Final = "gw_chaos_secret"
MODEL: Final = "base"
_FLEET_TOKEN: Final = "fleet-token"
_GATEWAYS: Final = 2
_UPSTREAMS: Final = 2
_UNREACHED: Final = (Limit("requests", 10**7), Limit("tokens", 10**10), Limit("budget", 10**15))


class ReportedUsage(NamedTuple):
    """The usage that a worker last reported for one request."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


@dataclass(slots=True)
class Killable:
    """A process that is killed and restarted repeatedly.

    Attributes:
        deaths: `time.monotonic()` just before each SIGKILL.
    """

    name: str
    command: Sequence[str]
    environ: Mapping[str, str]
    log: Path
    port: int = 0
    deaths: list[float] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, cwd=ROOT, env={**os.environ, **self.environ}, stdout=log, stderr=log
            )

    def kill(self, rng: random.Random) -> None:
        """Send SIGKILL to it and its child processes, in random order, and wait until all are dead."""
        if self.process is None or self.process.poll() is not None:
            return
        family = [self.process.pid, *_children(self.process.pid)]
        rng.shuffle(family)
        self.deaths.append(time.monotonic())
        for pid in family:
            # A process that just ended by itself is also dead.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        while any(map(_lives, family)):
            time.sleep(0.005)

    def stop(self, grace: float = 60.0) -> None:
        """Send SIGTERM, then SIGKILL if it does not end in time."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(grace)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        return [int(child) for child in path.read_text().split()]
    except OSError:
        return []


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Plant:
    """Two gateways, two backends, an ingester and a Valkey server in `folder`, on a given database.

    Every kind of limit is active; `places` is the concurrency limit. With `worker`, a checkpoint's folder,
    one backend is a real worker.
    """

    def __init__(self, folder: Path, database_url: str, *, places: int, worker: Path | None = None) -> None:
        self.folder = folder
        self._places, self._worker = places, worker
        self.ledger = folder / "ledger"
        self.database_url = database_url
        redis_port = _free_port()
        self.redis_url = f"redis://127.0.0.1:{redis_port}/0"
        (folder / "valkey").mkdir()
        self.redis = self._process("redis", server_command(port=redis_port, folder=folder / "valkey"))
        self.upstreams = [self._upstream(number) for number in range(1, _UPSTREAMS + 1)]
        self.gateways = [self._gateway(number) for number in range(1, _GATEWAYS + 1)]
        control_plane = {
            "GRAFTWORK_DATABASE_URL": database_url,
            "GRAFTWORK_REDIS_URL": self.redis_url,
            "GRAFTWORK_ARTIFACT_STORE": f"file://{folder / 'artifacts'}",
            "GRAFTWORK_SECRET_KEY": "chaos",
        }
        ingest = [sys.executable, "manage.py", "ingest_usage", "--claim-idle", "2"]
        self.ingester = self._process("ingester", ingest, control_plane)

    @property
    def processes(self) -> list[Killable]:
        return [self.redis, *self.upstreams, *self.gateways, self.ingester]

    @property
    def workers(self) -> list[Killable]:
        """The backends that are real workers, which take a while to start."""
        return self.upstreams[1:] if self._worker is not None else []

    def routes(self) -> RouteTable:
        """Return routes with one tenant with one key, limits and a price, and one base model with a copy per
        backend.
        """
        copies = tuple(
            CopyRoute(each.name, "worker", f"http://127.0.0.1:{each.port}") for each in self.upstreams
        )
        return RouteTable(
            version=1,
            keys={"chaos": KeyRoute("acme", hashlib.sha256(b"secret").hexdigest())},
            tenants={"acme": TenantRoute("Acme", "aa11")},
            bases={MODEL: BaseRoute(MODEL, 2048, copies)},
            limits={
                "tenant:acme": LimitsRoute((*_UNREACHED, Limit("concurrency", self._places))),
                "key:chaos": LimitsRoute(_UNREACHED),
            },
            rates={MODEL: RateRoute(150, 15, 600, 1000)},
        )

    def keep_budgets(self, client: redis.Redis) -> None:
        """Restore budget baselines after Redis was emptied, in place of the control plane."""
        month, _ = budget_period("month", dt.datetime.now(dt.UTC))
        for scope in ("tenant:acme", "key:chaos"):
            client.hsetnx(budget_key(scope, month), "base", "0")
            client.hsetnx(budget_key(scope, month), "cut", "1")

    def empty_redis(self) -> None:
        """Delete the data of a stopped server."""
        shutil.rmtree(self.folder / "valkey")
        (self.folder / "valkey").mkdir()

    def generated(self) -> tuple[dict[str, int], dict[str, ReportedUsage]]:
        """Return tokens generated by request id, and the usage that the worker reported for its requests."""
        totals: dict[str, int] = {}
        reported: dict[str, ReportedUsage] = {}
        for line in self.ledger.read_text().splitlines():
            request_id, tokens, *usage = line.split(" ")
            totals[request_id] = totals.get(request_id, 0) + int(tokens)
            if usage:
                reported[request_id] = ReportedUsage(*map(int, usage))
        return totals, reported

    def stop(self) -> None:
        """Stop everything; gateways first, so that they ship their events."""
        for each in [*self.gateways, self.ingester, *self.upstreams, self.redis]:
            each.stop()

    def _gateway(self, number: int) -> Killable:
        name, port = f"gateway-{number}", _free_port()
        environ = {
            "GRAFTWORK_REDIS_URL": self.redis_url,
            "GRAFTWORK_FLEET_TOKEN": _FLEET_TOKEN,
            "GRAFTWORK_GATEWAY_PORT": str(port),
            "GRAFTWORK_GATEWAY_ID": name,
            "GRAFTWORK_WAL_DIR": str(self.folder / name),
        }
        return self._process(name, [sys.executable, "-m", "gateway"], environ, port)

    def _upstream(self, number: int) -> Killable:
        port = _free_port()
        module, options = "benchmarks.canned_upstream", list[str]()
        if number == _UPSTREAMS and self._worker is not None:
            module, options = "benchmarks.chaos.worker", ["--model", str(self._worker)]
        command = [sys.executable, "-m", module, "--port", str(port), "--ledger", str(self.ledger), *options]
        environ = {"GRAFTWORK_FLEET_TOKEN": _FLEET_TOKEN}
        return self._process(f"upstream-{number}", command, environ, port)

    def _process(
        self, name: str, command: Sequence[str], environ: Mapping[str, str] | None = None, port: int = 0
    ) -> Killable:
        return Killable(name, command, environ or {}, self.folder / f"{name}.log", port)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
