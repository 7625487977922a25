"""Fills a composed product with the demo's tenants, keys, base model, copy, prices and adapters.

Prints what a client needs as JSON on standard output (the form of `var/demo.json`), progress on standard
error. Running it again changes nothing and prints the same keys, as long as the state volume lives.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from demo.credentials import TENANTS, Credentials
from demo.readiness import serves
from demo.registration import register_adapters

_CREDENTIALS = Path("/state/credentials.json")
_ROUTES_S = 30.0


def fill_database(base_model: str) -> Credentials:
    """Everything that is not reached by a tenant's key; a process's own Django writes it."""
    Credentials.load(_CREDENTIALS)
    from demo import seed

    with contextlib.redirect_stdout(sys.stderr):
        seed.main(
            [
                "--credentials",
                str(_CREDENTIALS),
                "--base-model",
                base_model,
                "--source",
                os.environ["MODEL_FOLDER"],
                "--worker-url",
                os.environ["WORKER_URL"],
            ]
        )
    return Credentials.load(_CREDENTIALS)


def register(base_model: str, credentials: Credentials) -> list[dict[str, Any]]:
    """Uploads the demo adapters with each tenant's own key, as a tenant would."""
    tenants: list[dict[str, Any]] = []
    for plan in TENANTS:
        key = credentials.api_keys[plan.slug]
        refused = register_adapters(
            web=os.environ["INNER_WEB_URL"],
            api_key=key,
            base_model=base_model,
            names=plan.adapters,
            check=lambda: None,
        )
        for name, reason in refused.items():
            print(f"{name} does not fit {base_model}: {reason}", file=sys.stderr)
        adapters = [name for name in plan.adapters if name not in refused]
        _await_routes(key, {base_model, *adapters})
        print(f"{plan.slug}: {', '.join(adapters) or 'the base model alone'}", file=sys.stderr)
        tenants.append(
            {
                "name": plan.slug,
                "login": plan.login,
                "password": credentials.passwords[plan.login],
                "api_key": key,
                "base_model": base_model,
                "adapters": adapters,
            }
        )
    return tenants


def _await_routes(api_key: str, names: set[str]) -> None:
    deadline = time.monotonic() + _ROUTES_S
    while not serves(os.environ["INNER_GATEWAY_URL"], api_key=api_key, names=names):
        if time.monotonic() > deadline:
            sys.exit(f"the gateway does not list {sorted(names)} after {_ROUTES_S:.0f} s: see its log")
        time.sleep(0.2)


def main() -> int:
    """Returns the exit status."""
    base_model = os.environ["MODEL_NAME"]
    tenants = register(base_model, fill_database(base_model))
    description = {
        "gateway": os.environ["GRAFTWORK_GATEWAY_URL"],
        "web": os.environ["GRAFTWORK_WEB_URL"],
        "tenants": tenants,
    }
    print(json.dumps(description, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
