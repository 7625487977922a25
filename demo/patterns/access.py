"""How the examples reach the demo: addresses, keys and the operator's login from `var/demo.json`."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from graftwork import Client
from openai import OpenAI

from demo.errors import DemoError
from demo.model import ROOT
from demo.supervisor import Description, TenantDescription

_TIMEOUT_S = 60.0


def arguments(description: str) -> argparse.ArgumentParser:
    """Return a parser with the option that all examples have: where the demo's description is."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--demo", type=Path, default=ROOT / "var" / "demo.json", help="file that the running demo writes"
    )
    return parser


def read_description(path: Path) -> Description:
    """Return the running demo's addresses, keys and logins.

    Raises:
        DemoError: no demo runs.
    """
    if not path.exists():
        raise DemoError(f"{path} does not exist: start the demo with `make demo`, and run this beside it")
    description: Description = json.loads(path.read_text(encoding="utf-8"))
    return description


def client_of(description: Description, tenant: TenantDescription) -> Client:
    """Return a REST client with the tenant's key."""
    return Client(description["web"], tenant["api_key"], gateway_url=description["gateway"])


def ask(description: Description, tenant: TenantDescription, model: str, question: str) -> str:
    """Return a model's answer through the gateway, 60 tokens at most, with the tenant's key.

    Raises:
        openai.APIStatusError: the gateway refuses the request; an unknown model is a 404.
    """
    with OpenAI(base_url=description["gateway"], api_key=tenant["api_key"]) as openai:
        answer = openai.chat.completions.create(
            model=model, messages=[{"role": "user", "content": question}], max_tokens=60, temperature=0
        )
    return answer.choices[0].message.content or ""


@contextmanager
def operator_session(description: Description) -> Iterator[httpx.Client]:
    """Log the operator in and yield a client of the REST API with the session.

    Base models, targets and deployments are the operator's, and API keys belong to tenants.
    """
    operator = description["operator"]
    with httpx.Client(base_url=description["web"], timeout=_TIMEOUT_S, follow_redirects=True) as session:
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', session.get("/login").text)
        if token is None:
            raise DemoError(f"{description['web']}/login has no login form")
        form = {"csrfmiddlewaretoken": token[1], "login": operator["login"], "password": operator["password"]}
        headers = {"Referer": f"{description['web']}/login"}
        session.post("/login", data=form, headers=headers).raise_for_status()
        session.headers["X-CSRFToken"] = session.cookies["graftwork_csrf"]
        session.headers["Referer"] = description["web"]
        yield session


def created(session: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Create an object named `body["name"]` unless it exists, and return it.

    Raises:
        DemoError: the API refuses it; the message quotes the API's errors.
    """
    answer = session.get(f"/api/v1/{path}/{body['name']}")
    if answer.status_code == httpx.codes.NOT_FOUND:
        answer = session.post(f"/api/v1/{path}", json=body)
    if not answer.is_success:
        raise DemoError(f"{path}/{body['name']}: {answer.status_code} {answer.text}")
    found: dict[str, Any] = answer.json()
    return found
