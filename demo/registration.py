"""Registers the committed adapters as a tenant would: by the REST API and its key, validated by Celery."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import httpx

from contracts.adapters.reference import ADAPTER_FILES
from demo.effects import ADAPTERS
from demo.errors import SeedError

_VALIDATION_S: Final = 120.0
_POLL_S: Final = 0.25


def register_adapters(
    *, web: str, api_key: str, base_model: str, names: tuple[str, ...], check: Callable[[], None]
) -> dict[str, str]:
    """Upload each adapter that the tenant does not have yet, and wait for the validation.

    Args:
        check: called while waiting; raises if a process of the demo has ended.

    Returns:
        The refused adapters with their reasons; empty if all are ready.

    Raises:
        SeedError: the API refused an upload, or validation takes over two minutes.
    """
    headers = {"Authorization": f"Bearer {api_key}"}
    with httpx.Client(base_url=f"{web}/api/v1", headers=headers, timeout=60, trust_env=False) as api:
        known = {adapter["name"] for adapter in _adapters(api)}
        for name in names:
            if name not in known:
                _upload(api, name, base_model)
        deadline = time.monotonic() + _VALIDATION_S
        while True:
            versions = {adapter["name"]: adapter["versions"] for adapter in _adapters(api)}
            verdicts = {name: max(versions[name], key=lambda version: version["number"]) for name in names}
            if all(version["status"] in ("ready", "refused") for version in verdicts.values()):
                return {
                    name: version["reason"]
                    for name, version in verdicts.items()
                    if version["status"] == "refused"
                }
            if time.monotonic() > deadline:
                raise SeedError(f"adapters are not validated after {_VALIDATION_S:.0f} s: {verdicts}")
            check()
            time.sleep(_POLL_S)


def _upload(api: httpx.Client, name: str, base_model: str) -> None:
    files = [("files", (file, (ADAPTERS / name / file).read_bytes())) for file in ADAPTER_FILES]
    _json(api.post("/adapters", data={"name": name, "base_model": base_model}, files=files))


def _adapters(api: httpx.Client) -> list[dict[str, Any]]:
    page, found = _json(api.get("/adapters")), []
    while True:
        found += page["results"]
        if not page["next"]:
            return found
        page = _json(api.get(page["next"]))


def _json(response: httpx.Response) -> Any:
    if response.is_error:
        raise SeedError(
            f"{response.request.method} {response.url} returned {response.status_code}: {response.text}"
        )
    return response.json()
