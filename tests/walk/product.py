"""The whole product as real processes, seen from outside: by HTTP only."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import httpx
from openai import OpenAI

from demo.credentials import OPERATOR
from tests.conftest import ROOT, free_port, stop
from tests.waiting import eventually

_START_S: Final = 240.0


@dataclass(frozen=True, slots=True)
class TenantAccess:
    """One entry of `var/demo.json`."""

    name: str
    login: str
    password: str
    api_key: str
    base_model: str
    adapters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tokens:
    """A usage report's totals."""

    requests: int
    prompt: int
    completion: int

    def __sub__(self, other: Tokens) -> Tokens:
        return Tokens(
            self.requests - other.requests, self.prompt - other.prompt, self.completion - other.completion
        )


@dataclass(frozen=True, slots=True)
class Product:
    """A running product. What is "" cannot be reached, or is not known, from here."""

    gateway: str
    web: str
    tenants: tuple[TenantAccess, ...]
    worker: str = ""
    fleet_token: str = ""
    operator_password: str = ""
    hooks_port: int = 0
    """Of this machine, which webhooks may call."""
    mail: Path | None = None
    """Folder of the e-mails that it sent."""
    description: Path | None = None
    """The `demo.json` of a product that runs on this machine."""

    @classmethod
    def from_description(cls, path: Path, **extra: Any) -> Product:
        value = json.loads(path.read_text())
        tenants = tuple(
            TenantAccess(**{**tenant, "adapters": tuple(tenant["adapters"])}) for tenant in value["tenants"]
        )
        return cls(value["gateway"], value["web"], tenants, **extra)

    def openai(self, tenant: TenantAccess, **options: Any) -> OpenAI:
        return OpenAI(base_url=self.gateway, api_key=tenant.api_key, max_retries=0, **options)

    def rest_client(self, tenant: TenantAccess) -> httpx.Client:
        headers = {"Authorization": f"Bearer {tenant.api_key}"}
        return httpx.Client(base_url=f"{self.web}/api/v1", headers=headers, timeout=60, trust_env=False)

    def report(self, tenant: TenantAccess, group_by: str = "day", **query: str) -> dict[str, Any]:
        # Days around now, since a test may run over midnight.
        now = datetime.now(UTC)
        days = {"start": f"{now - timedelta(days=1):%Y-%m-%d}", "end": f"{now + timedelta(days=1):%Y-%m-%d}"}
        with self.rest_client(tenant) as rest:
            response = rest.get("/usage", params={**days, "group_by": group_by, **query})
            response.raise_for_status()
            report: dict[str, Any] = response.json()
            return report

    def tokens(self, tenant: TenantAccess) -> Tokens:
        total = self.report(tenant)["total"]
        return Tokens(total["requests"], total["prompt_tokens"], total["completion_tokens"])

    def tokens_after(self, tenant: TenantAccess, before: Tokens, requests: int) -> Tokens:
        """Return the usage that the report gained since `before`, once it has `requests` more requests."""
        eventually(
            lambda: (self.tokens(tenant) - before).requests >= requests,
            message=f"the report of {tenant.name} shows {requests} more requests",
        )
        return self.tokens(tenant) - before

    def worker_metric(self, name: str) -> float:
        headers = {"Authorization": f"Bearer {self.fleet_token}"}
        text = httpx.get(f"{self.worker}/metrics", headers=headers, trust_env=False).text
        match = re.search(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
        assert match, f"the worker's metrics lack {name}:\n{text}"
        return float(match[1])


@contextmanager
def logged_in(product: Product, email: str, password: str) -> Iterator[httpx.Client]:
    """A session of the web UI, which REST takes too."""
    with httpx.Client(base_url=product.web, timeout=60, trust_env=False, follow_redirects=True) as session:
        page = session.get("/login").text
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
        assert token
        form = {"csrfmiddlewaretoken": token[1], "login": email, "password": password}
        assert session.post("/login", data=form, headers={"Referer": f"{product.web}/login"}).is_success
        session.headers["X-CSRFToken"] = session.cookies["graftwork_csrf"]
        session.headers["Referer"] = product.web
        yield session


@contextmanager
def demo(var: Path, environment: Mapping[str, str]) -> Iterator[Product]:
    """Starts `python -m demo` on free ports in `var` and ends it."""
    base, hooks_port = _free_port_base(), free_port()
    mail = var / "mail"
    environment = {
        **environment,
        "GRAFTWORK_OUTGOING_ALLOW": f"127.0.0.1:{hooks_port}",
        "GRAFTWORK_EMAIL_URL": f"file://{mail}",
    }
    command = [sys.executable, "-m", "demo", "--no-sample", "--port-base", str(base), "--var", str(var)]
    with (var / "supervisor.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **environment}, stdout=log, stderr=log
        )
    try:
        output = (var / "supervisor.log").read_text
        eventually(
            lambda: "==> ready" in output() or process.poll() is not None, seconds=_START_S, message=output
        )
        if process.poll() is not None:
            raise RuntimeError(f"the product did not start:\n{output()}")
        credentials = json.loads((var / "demo" / "credentials.json").read_text())
        yield Product.from_description(
            var / "demo.json",
            worker=f"http://127.0.0.1:{base + 2}",
            fleet_token=credentials["fleet_token"],
            operator_password=credentials["passwords"][OPERATOR],
            hooks_port=hooks_port,
            mail=mail,
            description=var / "demo.json",
        )
    finally:
        stop(process, grace=60)


def _free_port_base() -> int:
    for _ in range(100):
        base = min(free_port(), 65000)
        sockets = [socket.socket() for _ in range(4)]
        try:
            for offset, each in enumerate(sockets):
                each.bind(("127.0.0.1", base + offset))
        except OSError:
            continue
        finally:
            for each in sockets:
                each.close()
        return base
    raise RuntimeError("no four free ports in a row")
