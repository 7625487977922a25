"""Fixtures of every test: free ports, a real Valkey server, the demo model's folder."""

from __future__ import annotations

import gc
import os
import platform
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
import hypothesis
import pytest
import redis
from django.db import connection, transaction
from django.test import TransactionTestCase
from pytest_django.plugin import DjangoDbBlocker

from controlplane.billing.ledger import append_only as books
from controlplane.platform.audit import append_only
from demo.valkey import server_command
from tests.database_templates import postgresql_copy, sqlite_copy
from tests.databases import SERVER
from tests.worker_engine.tiny_adapter import write_adapters
from tests.worker_engine.tiny_model import write_model

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).resolve().parent.parent
_PORTS = random.SystemRandom()
DEMO_MODEL = Path(os.environ.get("GRAFTWORK_DEMO_MODEL", ROOT / "var" / "models" / "smollm2-135m-instruct"))

# A busy machine is slow at times; how long a test may take pytest-timeout says. On CI examples are drawn from
# a fixed seed, so that a commit passes twice; everywhere else they are new ones each time.
hypothesis.settings.register_profile(
    "graftwork",
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("graftwork")


# Collection makes hundreds of thousands of objects that stay: each walk over them finds nothing to free.
gc.disable()


def pytest_collection_finish() -> None:
    """Spare the garbage collector what was imported; walking it costs a tenth of the tests' CPU time."""
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def free_port() -> int:
    """Return a loopback TCP port that is free at this moment.

    The port is below the range of outgoing connections. Until the caller's server listens, connections of
    other tests must not get it.
    """
    while True:
        # The system's own chance: property tests set the seed of Python's.
        port = _PORTS.randrange(10_000, 32_000)
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


def stop(process: subprocess.Popen[bytes], *, grace: float = 10.0) -> None:
    """Ends a process that a test started: SIGTERM, then SIGKILL after `grace` seconds."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(grace)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


LASTING_TABLES = frozenset({"django_content_type", "auth_permission"})
"""What migrations leave there no test changes."""


def empty_tables() -> None:
    """Delete every row that a test has left, as Django's `flush` does.

    Django truncates all tables, filled or not, and makes the content types and permissions anew: a second
    per test with transactions on PostgreSQL, where deleting takes 10 ms.
    """
    tables = set(connection.introspection.django_table_names(only_existing=True)) - LASTING_TABLES
    with transaction.atomic(), connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            # Replicas fire no triggers: neither foreign keys nor append-only tables object.
            cursor.execute("SET LOCAL session_replication_role = replica")
            # One block: a statement per table would be a round trip each.
            deletes = " ".join(f"DELETE FROM {table};" for table in sorted(tables))
            cursor.execute(f"DO $$ BEGIN {deletes} END $$")
            return
        append_only.remove(connection)
        books.remove(connection)
        filled = (f"SELECT '{table}' WHERE EXISTS (SELECT 1 FROM {table})" for table in tables)
        cursor.execute(" UNION ALL ".join(filled))
        for (table,) in cursor.fetchall():
            cursor.execute(f"DELETE FROM {table}")
        # Run deferred checks first: pending ones would block the triggers' creation.
        connection.check_constraints()
        append_only.install(connection)
        books.install(connection)


@pytest.fixture(scope="session")
def django_db_setup(
    django_test_environment: None,
    django_db_blocker: DjangoDbBlocker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[None]:
    """A copy of the migrated template becomes the default database, instead of pytest-django's own."""
    with ExitStack() as stack:
        if connection.vendor == "postgresql":
            name = urlsplit(stack.enter_context(postgresql_copy(SERVER))).path.removeprefix("/")
        else:
            name = str(tmp_path_factory.mktemp("database") / "default.db")
            sqlite_copy(Path(name))
        connection.close()
        # Threads' connections share these settings.
        connection.settings_dict["NAME"] = name
        yield
        with django_db_blocker.unblock():
            connection.close()


@pytest.fixture(scope="session", autouse=True)
def tables_are_emptied_at_once() -> Iterator[None]:
    """After a test with transactions; the triggers of the audit log and of the books would refuse."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", lambda _: empty_tables())
        yield


@pytest.fixture(scope="session", autouse=True)
def trusted_authorities_are_read_once() -> Iterator[None]:
    """Each httpx client reads 150 authorities anew, 27 ms of CPU for every request of a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("httpx._transports.default.create_ssl_context", cache(httpx.create_ssl_context))
        yield


@pytest.fixture(scope="session", autouse=True)
def processor_is_known() -> None:
    """OpenAI's client starts `uname -p` at the first request, which counts against no test's budget."""
    platform.processor()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a real Valkey server of this test session's own."""
    port, folder = free_port(), tmp_path_factory.mktemp("valkey")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(server_command(port=port, folder=folder), stdout=log, stderr=log)
    client = redis.Redis(port=port)
    for _ in range(200):
        try:
            client.ping()
            break
        except redis.exceptions.ConnectionError:
            time.sleep(0.05)
    else:
        stop(process)
        raise RuntimeError(f"valkey did not start: {(folder / 'log').read_text()}")
    client.close()
    yield f"redis://127.0.0.1:{port}/0"
    stop(process)


@pytest.fixture(scope="session")
def lasting_redis(redis_server: str) -> str:
    """The database of gateways that outlive a test: emptied, it is told their usage again."""
    return redis_server.removesuffix("/0") + "/1"


@pytest.fixture
def redis_url(redis_server: str, request: pytest.FixtureRequest) -> str:
    """An emptied database of the test session's Valkey server."""
    url = redis_server
    if "lasting_redis" in request.fixturenames:
        url = request.getfixturevalue("lasting_redis")
    with redis.Redis.from_url(url) as client:
        client.flushdb()
    return url


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """Folder of the demo model in Hugging Face form; made by `make setup`."""
    if not (DEMO_MODEL / "model.safetensors").exists():
        pytest.fail(f"the demo model is not at {DEMO_MODEL}: run `make setup`")
    return DEMO_MODEL


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random fp32 Llama checkpoint."""
    return write_model(tmp_path_factory.mktemp("tiny"), seed=7)


@pytest.fixture(scope="session")
def tiny_adapters(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of random adapters by name: ranks 1 to 64, different modules, rsLoRA, patterns."""
    return write_adapters(tiny_model, tmp_path_factory.mktemp("adapters"))


@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that the product starts from this process's environment are forked from the zygote."""
    # tests.worker_process imports this module.
    from tests.worker_process import worker_environment
    from worker_engine.zygote.handover import VARIABLE

    environment = worker_environment()
    for name in set(os.environ) - set(environment):
        monkeypatch.delenv(name)
    for name in (VARIABLE, "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, environment[name])


@pytest.fixture
def cold_worker_start(forked_workers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are processes of their own, so that a test can stop one with a signal or measure it."""
    from worker_engine.zygote.handover import VARIABLE

    monkeypatch.delenv(VARIABLE)


def installed_chromium() -> str | None:
    """Return Chromium's path; its build without windows renders alike in half the CPU time."""
    return shutil.which("chromium-headless-shell") or shutil.which("chromium")


class BrowserHolder:
    """Chromium for consecutive tests, started by the first that needs it.

    It closes before any other test: Playwright's event loop runs in this thread, where another test's
    `asyncio.run` would fail, and Django takes the thread for asynchronous code.
    """

    def __init__(self) -> None:
        self._open = ExitStack()
        self._browser: Browser | None = None

    def browser(self) -> Browser:
        """The running browser; the test is skipped, on CI failed, where there is none."""
        if self._browser is None:
            program = os.environ.get("GRAFTWORK_TEST_CHROMIUM") or installed_chromium()
            if not program or not Path(program).exists():
                absent: Callable[[str], Any] = pytest.fail if os.environ.get("CI") else pytest.skip
                absent(
                    "no Chromium: apt-get install chromium-headless-shell (or chromium), "
                    "or set GRAFTWORK_TEST_CHROMIUM to its path"
                )
            os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
            self._open.callback(os.environ.pop, "DJANGO_ALLOW_ASYNC_UNSAFE", None)
            # Half a second that tests without a browser save.
            from playwright.sync_api import sync_playwright

            playwright = self._open.enter_context(sync_playwright())
            self._browser = playwright.chromium.launch(executable_path=program, args=CHROMIUM_FLAGS)
            self._open.callback(self._browser.close)
        return self._browser

    def close(self) -> None:
        self._browser = None
        self._open.close()


CHROMIUM = BrowserHolder()


@pytest.fixture
def browser() -> Browser:
    """Chromium from the PATH, or the executable that GRAFTWORK_TEST_CHROMIUM names."""
    return CHROMIUM.browser()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Close the browser after the last of consecutive tests with one."""
    # Pages of tests/ui stay open between its modules.
    if nextitem is None or not (
        "browser" in getattr(nextitem, "fixturenames", ()) or "/ui/" in nextitem.nodeid
    ):
        CHROMIUM.close()
