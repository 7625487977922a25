"""Several base models, each with its adapters: `python -m demo.patterns.several_base_models`.

The operator registers a second base model, deploys it on this machine and sets its price. A customer
registers an adapter for it and calls both adapters with one key, at one address: the gateway sends each
request to a copy of the right base model. `--remove` deletes the adapter and the deployment.
"""

from __future__ import annotations

import datetime as dt
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx
from graftwork import GraftworkError, NotFoundError
from openai import OpenAIError

from demo.effects import ADAPTERS
from demo.errors import DemoError
from demo.model import model_folder
from demo.patterns.access import arguments, ask, client_of, created, operator_session, read_description
from demo.supervisor import Description

QUESTION: Final = "Summarize this CV: ten years of nursing, the last three as head of a ward."
_PATIENCE_S: Final = 300.0
_POLL_S: Final = 1.0


def deploy(session: httpx.Client, base_model: str, checkpoint: Path) -> None:
    """Register the base model with its target and deployment, and wait until it serves.

    Raises:
        DemoError: the API refuses something, or the deployment fails or takes over five minutes.
    """
    host = socket.gethostname()
    created(session, "base-models", {"name": base_model, "source": str(checkpoint)})
    created(session, "targets", {"name": "this-host", "kind": "local", "host": host, "address": "127.0.0.1"})
    body: dict[str, Any] = {"name": base_model, "target": "this-host", "base_model": base_model}
    created(session, "deployments", body | {"min_copies": 1, "max_copies": 1})
    deadline = time.monotonic() + _PATIENCE_S
    while (state := created(session, "deployments", body))["status"] != "serving":
        if state["status"] == "failed" or time.monotonic() > deadline:
            raise DemoError(f"deployment {base_model} is {state['status']}: {state['reason']}")
        time.sleep(_POLL_S)


def set_price(session: httpx.Client, base_model: str) -> None:
    """Set the base model's price from today on in the first price book, unless it was set today.

    Raises:
        DemoError: the API refuses it.
    """
    book = session.get("/api/v1/price-books").raise_for_status().json()["results"][0]["name"]
    path = f"/api/v1/price-books/{quote(book)}/prices"
    today = dt.datetime.now(dt.UTC).date().isoformat()
    amounts = {"input_nano": 200, "cached_input_nano": 50, "output_nano": 800, "request_nano": 0}
    answer = session.post(path, json={"base_model": base_model, "effective_from": today} | amounts)
    if not answer.is_success and answer.status_code != httpx.codes.CONFLICT:
        raise DemoError(f"{path}: {answer.status_code} {answer.text}")


def remove(session: httpx.Client, base_model: str) -> None:
    """Remove the deployment and wait until it is gone; the base model stays in the catalogue.

    Raises:
        DemoError: the API refuses it, or it takes over five minutes.
    """
    answer = session.delete(f"/api/v1/deployments/{base_model}")
    if not answer.is_success and answer.status_code != httpx.codes.NOT_FOUND:
        raise DemoError(f"deployments/{base_model}: {answer.status_code} {answer.text}")
    deadline = time.monotonic() + _PATIENCE_S
    while session.get(f"/api/v1/deployments/{base_model}").status_code != httpx.codes.NOT_FOUND:
        if time.monotonic() > deadline:
            raise DemoError(f"deployment {base_model} is still there; /staff/deployments/ says why")
        time.sleep(_POLL_S)


def compare(description: Description, base_model: str, folder: Path) -> None:
    """Register the customer's adapter for the second base model, and ask one adapter of each."""
    customer = description["tenants"][0]
    first, second = customer["adapters"][0], f"{folder.name}-on-{base_model}"
    with client_of(description, customer) as client:
        try:
            client.adapters.get(second)
        except NotFoundError:
            version = client.adapters.push(folder, name=second, base_model=base_model)
            client.adapters.wait(second, version.number)
    for adapter, base in ((first, customer["base_model"]), (second, base_model)):
        print(f"{adapter} on {base}:\n  {ask(description, customer, adapter, QUESTION)!r}")


def main(options: Sequence[str] | None = None) -> int:
    """Run the example; return 0, or 1 with one message after an error."""
    parser = arguments("Several base models, each with its adapters.")
    parser.add_argument("--base-model", default="cv-matching", help="name of the second base model")
    parser.add_argument("--checkpoint", type=Path, help="its folder; the demo's own model if left out")
    parser.add_argument(
        "--adapter",
        type=Path,
        default=ADAPTERS / "three-steps",
        help="folder of an adapter of that base model",
    )
    parser.add_argument("--remove", action="store_true", help="delete the adapter and the deployment")
    chosen = parser.parse_args(options)
    try:
        description = read_description(chosen.demo)
        with operator_session(description) as session:
            if chosen.remove:
                with client_of(description, description["tenants"][0]) as client, suppress(NotFoundError):
                    client.adapters.delete(f"{chosen.adapter.name}-on-{chosen.base_model}")
                remove(session, chosen.base_model)
                return 0
            deploy(session, chosen.base_model, (chosen.checkpoint or model_folder()).resolve())
            set_price(session, chosen.base_model)
        compare(description, chosen.base_model, chosen.adapter)
    except (DemoError, GraftworkError, OpenAIError, httpx.HTTPError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
