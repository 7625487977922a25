"""`python -m demo` for real: it serves, says what is wrong, keeps its keys, and leaves no process."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped]
import pytest

from demo import supervisor
from demo.config import DemoConfig
from demo.credentials import OPERATOR, TENANTS, Credentials
from demo.errors import AlreadyRunningError, DemoError, DiskFullError, PortTakenError
from demo.model import MODEL_NAME
from demo.supervisor import Description, running
from tests.conftest import ROOT, free_port
from tests.waiting import eventually

READY_S = 180


@dataclass
class Started:
    """`python -m demo` as a process; `text` is all that it printed up to now."""

    process: subprocess.Popen[str]
    text: str
    var: Path

    @property
    def description(self) -> Description:
        found: Description = json.loads((self.var / "demo.json").read_text())
        return found

    def family(self) -> list[psutil.Process]:
        """The product's processes, all generations."""
        found: list[psutil.Process] = psutil.Process(self.process.pid).children(recursive=True)
        return found


def start(var: Path, base: int) -> Started:
    """Starts the demo and reads its output until it is ready, or has ended."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DJANGO_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "demo", "--no-sample", "--port-base", str(base), "--var", str(var)],
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("For scripts:"):
            break
    return Started(process, "".join(lines), var)


def rest_of(started: Started) -> str:
    """Return the rest of its output, up to its end."""
    text, _ = started.process.communicate(timeout=60)
    return text


def wait_gone(family: list[psutil.Process]) -> None:
    """Fails unless every process ends."""

    def alive() -> list[psutil.Process]:
        return [each for each in family if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]

    eventually(lambda: not alive(), message=lambda: f"left over: {[each.cmdline() for each in alive()]}")


@pytest.fixture(scope="module")
def var(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("var")


@pytest.fixture(scope="module")
def base() -> int:
    """A port base whose four ports are free."""
    while any(_taken(port := free_port()) or _taken(port + each) for each in range(4)):
        pass
    return port


def _taken(port: int) -> bool:
    with socket.socket() as probe:
        return port > 65000 or probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.slow
@pytest.mark.walk
@pytest.mark.model
@pytest.mark.timeout(READY_S)
def test_first_start_serves_and_sigterm_leaves_nothing(var: Path, base: int, demo_model: Path) -> None:
    demo = start(var, base)
    try:
        assert "==> ready" in demo.text, demo.text
        description, path = demo.description, var / "demo.json"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE((var / "demo" / "credentials.json").stat().st_mode) == 0o600
        assert stat.S_IMODE((var / "demo" / "graftwork.db").stat().st_mode) == 0o600
        assert description["gateway"] == f"http://127.0.0.1:{base + 1}/v1"
        assert [tenant["name"] for tenant in description["tenants"]] == [plan.slug for plan in TENANTS]
        assert all(set(tenant) == _TENANT_KEYS for tenant in description["tenants"])
        assert [tuple(tenant["adapters"]) for tenant in description["tenants"]] == [
            p.adapters for p in TENANTS
        ]
        _curl_streams(demo.text)
        _login_works(description)
        family = demo.family()
        assert len(family) >= 10
        demo.process.send_signal(signal.SIGTERM)
        assert "stopped by SIGTERM" in rest_of(demo)
        assert demo.process.returncode == 0
        wait_gone(family)
        assert not path.exists()
    finally:
        demo.process.kill()


_TENANT_KEYS = {"name", "login", "password", "api_key", "base_model", "adapters"}


@pytest.mark.slow
@pytest.mark.walk
@pytest.mark.model
@pytest.mark.timeout(READY_S)
def test_later_starts_keep_keys_and_sigkill_leaves_nothing(var: Path, base: int, demo_model: Path) -> None:
    before = Credentials.load(var / "demo" / "credentials.json")
    assert before.api_keys, "needs the first start"
    demo = start(var, base)
    try:
        assert "==> ready" in demo.text, demo.text
        keys = {tenant["name"]: tenant["api_key"] for tenant in demo.description["tenants"]}
        assert keys == before.api_keys
        tenant = demo.description["tenants"][0]
        versions = _adapters(demo.description, tenant["api_key"])
        assert {name: len(each) for name, each in versions.items()} == dict.fromkeys(tenant["adapters"], 1)
        family = demo.family()
        with (
            pytest.raises(AlreadyRunningError, match=f"process {demo.process.pid}"),
            _running(var, base + 10),
        ):
            pass
        demo.process.kill()
        wait_gone(family)
    finally:
        demo.process.kill()
        demo.process.communicate()


@pytest.mark.slow
@pytest.mark.walk
@pytest.mark.model
@pytest.mark.timeout(READY_S)
def test_a_dead_child_ends_all_with_its_name_and_log(var: Path, base: int, demo_model: Path) -> None:
    demo = start(var, base)
    try:
        assert "==> ready" in demo.text, demo.text
        family = demo.family()
        gateway = next(each for each in family if each.cmdline()[1:] == ["-m", "gateway"])
        gateway.kill()
        text = rest_of(demo)
        assert "graftwork demo: gateway ended by SIGKILL; last lines of " in text
        assert "gateway.log" in text
        assert demo.process.returncode == 1
        wait_gone(family)
    finally:
        demo.process.kill()


@pytest.mark.slow
@pytest.mark.walk
@pytest.mark.model
@pytest.mark.timeout(2 * READY_S)
def test_copies_of_a_deployment_end_with_the_demo(var: Path, base: int, demo_model: Path) -> None:
    """Celery's tasks start them, without a parent of ours and with few variables of ours."""
    demo = start(var, base)
    copies: list[psutil.Process] = []
    try:
        assert "==> ready" in demo.text, demo.text
        with _operator(demo) as api:
            _answered(api.post("/targets", json={"name": "here", "kind": "local"}))
            body = {"name": DEPLOYMENT, "target": "here", "base_model": MODEL_NAME, "min_copies": 1}
            _answered(api.post("/deployments", json=body))
            eventually(lambda: len(_copies()) == 1, message="the copy is started")
            _answered(api.patch(f"/deployments/{DEPLOYMENT}", json={"min_copies": 2, "max_copies": 2}))
            eventually(lambda: len(_copies()) == 2, message="another copy is started")
        copies = _copies()
        demo.process.send_signal(signal.SIGTERM)
        assert "stopped by SIGTERM" in rest_of(demo)
        wait_gone(copies)
        assert _copies() == []
    finally:
        demo.process.kill()
        demo.process.communicate()
        for copy in copies:
            with suppress(psutil.NoSuchProcess):
                copy.kill()
        rmtree(ROOT / "var" / "deployments" / DEPLOYMENT, ignore_errors=True)


DEPLOYMENT = f"ends-{uuid.uuid4().hex[:7]}x"


def _copies() -> list[psutil.Process]:
    """Return the deployment's workers, orphans included."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if f"/deployments/{DEPLOYMENT}/" in " ".join(process.cmdline()):
                found.append(process)
    return found


@contextmanager
def _operator(demo: Started) -> Iterator[httpx.Client]:
    """The REST API as the operator."""
    web = demo.description["web"]
    password = Credentials.load(demo.var / "demo" / "credentials.json").passwords[OPERATOR]
    with httpx.Client(base_url=f"{web}/api/v1", trust_env=False, timeout=60) as session:
        page = session.get(f"{web}/login").text
        token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page)
        assert token, page
        form = {"login": OPERATOR, "password": password, "csrfmiddlewaretoken": token[1]}
        assert session.post(f"{web}/login", data=form, headers={"Origin": web}).status_code == 302
        session.headers.update({"X-CSRFToken": session.cookies["graftwork_csrf"], "Referer": web})
        yield session


def _answered(answer: httpx.Response) -> None:
    assert answer.is_success, answer.text


def test_a_taken_port_is_named_with_a_way_out(tmp_path: Path, base: int) -> None:
    with socket.create_server(("127.0.0.1", base + 1)):
        message = (
            rf"port {base + 1}, which the demo needs for its gateway, is taken .* make demo PORT_BASE=\d+"
        )
        with pytest.raises(PortTakenError, match=message), _running(tmp_path, base):
            pass
        demo = start(tmp_path, base)
    rest_of(demo)
    assert demo.process.returncode == 1
    assert re.search(message, demo.text)
    assert "Traceback" not in demo.text
    assert not (tmp_path / "demo.json").exists()


def test_a_full_disk_is_said_before_anything_starts(
    tmp_path: Path, base: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_DISK_NEEDED", 1 << 62)
    with (
        pytest.raises(DiskFullError, match="GB of free disk and the demo needs 1 GB"),
        _running(tmp_path, base),
    ):
        pass
    assert not (tmp_path / "demo" / "logs").exists()


def test_a_stale_description_is_removed(tmp_path: Path, base: int, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "demo.json").write_text("{}")
    monkeypatch.setattr(supervisor, "_DISK_NEEDED", 1 << 62)
    with pytest.raises(DiskFullError), _running(tmp_path, base):
        pass
    assert not (tmp_path / "demo.json").exists()


@pytest.mark.parametrize("port_base", [0, 80, 65533])
def test_port_bases_out_of_range_are_refused(port_base: int) -> None:
    with pytest.raises(DemoError, match="PORT_BASE must be from 1024 to 65532"):
        DemoConfig(port_base=port_base)


def test_damaged_credentials_say_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "credentials.json").write_text('{"secret_key": ')
    with pytest.raises(DemoError, match=r"credentials\.json is damaged .*: delete"):
        Credentials.load(tmp_path / "credentials.json")


def _running(var: Path, base: int) -> Any:
    return running(DemoConfig(var=var, port_base=base))


def _curl_streams(text: str) -> None:
    """Run the printed command unchanged."""
    command = text[text.index("curl ") : text.index("\n\nFor scripts:")]
    answer = subprocess.run(
        command, shell=True, capture_output=True, text=True, timeout=60, check=True
    ).stdout
    events = [line for line in answer.splitlines() if line.startswith("data: {")]
    assert len(events) > 20
    assert answer.rstrip().endswith("data: [DONE]")
    words = "".join(json.loads(event[6:])["choices"][0]["delta"].get("content", "") for event in events)
    assert re.search(r"\b(arr|ahoy|aye|matey|ye)\b", words.lower()), words


def _login_works(description: Description) -> None:
    tenant = description["tenants"][0]
    with httpx.Client(base_url=description["web"], trust_env=False, follow_redirects=False) as browser:
        page = browser.get("/login")
        token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page.text)
        assert token, page.text
        form = {"login": tenant["login"], "password": tenant["password"], "csrfmiddlewaretoken": token[1]}
        reply = browser.post("/login", data=form, headers={"Origin": description["web"]})
        assert reply.status_code == 302, reply.text
        assert "graftwork_session" in browser.cookies


def _adapters(description: Description, key: str) -> dict[str, list[Any]]:
    reply = httpx.get(
        f"{description['web']}/api/v1/adapters", headers={"Authorization": f"Bearer {key}"}, trust_env=False
    )
    return {adapter["name"]: adapter["versions"] for adapter in reply.json()["results"]}
