"""Starts the whole product on this machine, seeds it, watches it and ends it.

with running(DemoConfig(var=folder, port_base=9000)) as demo:
    demo.description["gateway"], demo.processes.pid("worker")
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypedDict

from demo.commands import commands, sample_command
from demo.config import DemoConfig
from demo.credentials import OPERATOR, TENANTS, Credentials, write_private
from demo.errors import AlreadyRunningError, DiskFullError, PortTakenError, SeedError
from demo.mail_links import MailLinks
from demo.model import DEFAULT_FOLDER, ROOT, check_folder, set_up
from demo.old_database import is_old, set_aside
from demo.processes import Check, Processes
from demo.readiness import answers, logged, pings, serves
from demo.registration import register_adapters

_DISK_NEEDED: Final = 1_000_000_000
_START_S: Final = 120.0
"""Longest wait for a group of processes to become ready."""

Progress = Callable[[str], None]


class TenantDescription(TypedDict):
    """A tenant in var/demo.json; `adapters` are names as clients send them."""

    name: str
    login: str
    password: str
    api_key: str
    base_model: str
    adapters: list[str]


class OperatorDescription(TypedDict):
    """The operator in var/demo.json."""

    login: str
    password: str


class Description(TypedDict):
    """The content of var/demo.json; `gateway` ends in /v1."""

    gateway: str
    web: str
    operator: OperatorDescription
    tenants: list[TenantDescription]


@dataclass(frozen=True, slots=True)
class Demo:
    """A running demo."""

    config: DemoConfig
    credentials: Credentials
    processes: Processes
    description: Description

    def watch(self, *, progress: Progress) -> None:
        """Print the links of e-mails and the end of the sample data's process, and never return.

        Raises ProcessDiedError if a process ends by itself.
        """
        links = MailLinks(self.config.mailbox, web=self.config.url("web"))
        while True:
            self.processes.check()
            for name, status in self.processes.ended():
                done = "complete" if status == 0 else f"incomplete: see {self.processes.log(name)}"
                progress(f"{name:16} {done}")
            for recipient, link in links.fresh():
                progress(f"e-mail to {recipient}: {link}")
            time.sleep(0.25)


@contextlib.contextmanager
def running(config: DemoConfig, *, progress: Progress = lambda _: None) -> Iterator[Demo]:
    """Run the demo during the block; afterwards every process has ended and var/demo.json is removed.

    Raises:
        AlreadyRunningError, DiskFullError, PortTakenError: before anything is started.
        ProcessDiedError, SeedError: after everything was ended.
    """
    if config.database is None and is_old(config.database_file):
        with _exclusive(config.state / "lock"):
            set_aside(config.state, progress)
    config.state.mkdir(parents=True, exist_ok=True)
    config.state.chmod(0o700)
    with _exclusive(config.state / "lock") as lock:
        config.description.unlink(missing_ok=True)
        _preflight(config)
        if config.database is None:
            # Created before SQLite does so, which would make it readable for everybody.
            config.database_file.touch(mode=0o600)
            config.database_file.chmod(0o600)
        credentials = Credentials.load(config.state / "credentials.json")
        environment = config.environment(
            secret_key=credentials.secret_key, fleet_token=credentials.fleet_token
        )
        with Processes(environment, logs=config.logs, lock=lock, on_stop=progress) as processes:
            _start(config, processes, _Stopwatch(progress))
            credentials = Credentials.load(config.state / "credentials.json")
            description = _register(config, credentials, processes, progress)
            write_private(config.description, dict(description))
            if config.sample and not config.sample_state.exists():
                processes.start("sample", sample_command(config, "add"), background=True)
            try:
                yield Demo(config, credentials, processes, description)
            finally:
                config.description.unlink(missing_ok=True)


def remove_sample(config: DemoConfig) -> int:
    """Remove the sample data from the demo's database, while it runs or not; return the exit status.

    Raises:
        SeedError: the demo was never started here.
    """
    path = config.state / "credentials.json"
    if not path.exists():
        raise SeedError(f"no demo was started in {config.state}: there is no sample data to remove")
    credentials = Credentials.load(path)
    settings = config.environment(secret_key=credentials.secret_key, fleet_token=credentials.fleet_token)
    return subprocess.run(
        sample_command(config, "remove"), cwd=ROOT, env={**os.environ, **settings}, check=False
    ).returncode


class _Stopwatch:
    """Reports a name with the seconds since the start."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._started = progress, time.monotonic()

    def __call__(self, name: str) -> None:
        self._progress(f"{name:16} ready after {time.monotonic() - self._started:4.1f} s")


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[int]:
    """Hold the lock file; the run's reaper holds it too, until the last process has ended."""
    with path.open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise AlreadyRunningError(
                f"a demo runs on {path.parent} already, or is still shutting down"
                f" (process {lock.read().strip()}): stop it first, or wait a few seconds"
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield lock.fileno()


def _preflight(config: DemoConfig) -> None:
    if (free := shutil.disk_usage(config.state).free) < _DISK_NEEDED:
        raise DiskFullError(
            f"{config.state} has {free / 1e9:.2f} GB of free disk and the demo needs 1 GB: make room and "
            "start it again"
        )
    for name, port in config.ports.items():
        with socket.socket() as probe:
            # As servers do: a port in TIME_WAIT counts as free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                raise PortTakenError(
                    f"port {port}, which the demo needs for its {name}, is taken ({error.strerror}): end "
                    f"what listens there, or choose other ports: make demo PORT_BASE={_other(config)}"
                ) from error
    if config.model == DEFAULT_FOLDER:
        set_up(config.model)
    check_folder(config.model)


def _other(config: DemoConfig) -> int:
    return config.port_base + 1000 if config.port_base < 60000 else 8000


def _start(config: DemoConfig, processes: Processes, ready: Callable[[str], None]) -> None:
    """Start everything: the worker first, since it is slowest; users of the database after its migrations."""
    command = commands(config)
    (config.state / "valkey").mkdir(exist_ok=True)
    for name in ("valkey", "worker", "seed"):
        if name in command:
            processes.start(name, command[name])
    valkey: dict[str, Check] = {"valkey": partial(pings, config.redis_url)}
    processes.wait_ready(valkey, timeout=_START_S, on_ready=ready)
    processes.start("gateway", command["gateway"])
    processes.finish("seed", timeout=_START_S)
    ready("database")
    for name in ("publish_routes", "web", "celery", "celery_long", "ingest_usage", "beat"):
        processes.start(name, command[name])
    checks: dict[str, Check] = {
        "gateway": partial(answers, f"{config.url('gateway')}/readyz"),
        "worker": partial(answers, f"{config.url('worker')}/health"),
        "web": partial(answers, f"{config.url('web')}/login"),
        "celery": partial(logged, processes.log("celery"), b" ready."),
        "celery_long": partial(logged, processes.log("celery_long"), b" ready."),
    }
    processes.wait_ready(checks, timeout=_START_S, on_ready=ready)


def _register(
    config: DemoConfig, credentials: Credentials, processes: Processes, progress: Progress
) -> Description:
    tenants: list[TenantDescription] = []
    for plan in TENANTS:
        key = credentials.api_keys[plan.slug]
        refused = register_adapters(
            web=config.url("web"),
            api_key=key,
            base_model=config.base_model,
            names=plan.adapters,
            check=processes.check,
        )
        for name, reason in refused.items():
            if config.model == DEFAULT_FOLDER:
                raise SeedError(f"the adapter {name} was refused: {reason}")
            progress(f"{name:16} does not fit {config.base_model}: {reason}")
        adapters = [name for name in plan.adapters if name not in refused]
        names = {config.base_model, *adapters}
        processes.wait_ready(
            {f"models of {plan.slug}": partial(serves, config.url("gateway"), api_key=key, names=names)},
            timeout=_START_S,
            on_ready=lambda _: None,
        )
        progress(f"{plan.slug:16} {', '.join(adapters) or 'the base model alone'}")
        tenants.append(
            {
                "name": plan.slug,
                "login": plan.login,
                "password": credentials.passwords[plan.login],
                "api_key": key,
                "base_model": config.base_model,
                "adapters": adapters,
            }
        )
    return {
        "gateway": f"{config.url('gateway')}/v1",
        "web": config.url("web"),
        "operator": {"login": OPERATOR, "password": credentials.passwords[OPERATOR]},
        "tenants": tenants,
    }
