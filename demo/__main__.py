"""`python -m demo`: runs the demo with output for people, until Ctrl-C, SIGTERM or SIGHUP."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from demo.config import DEFAULT_PORT_BASE, DemoConfig
from demo.credentials import OPERATOR
from demo.errors import DemoError
from demo.model import ROOT
from demo.supervisor import Demo, remove_sample, running


class _StopRequest(BaseException):
    """A stop signal; not an Exception, so that no handler swallows it."""


def _on_signal(number: int, _: FrameType | None) -> NoReturn:
    # Ignore further signals: a second one must not interrupt the shutdown.
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    raise _StopRequest(signal.Signals(number).name)


def _welcome(demo: Demo) -> str:
    """Return the start text: addresses, logins, a key, a streaming curl command."""
    description = demo.description
    tenant = description["tenants"][0]
    body = {
        "model": (tenant["adapters"] or [tenant["base_model"]])[0],
        "stream": True,
        "max_tokens": 120,
        "messages": [{"role": "user", "content": "Tell me about the moon."}],
    }
    logins = [(tenant["login"], tenant["password"], tenant["name"]) for tenant in description["tenants"]]
    logins.append((OPERATOR, demo.credentials.passwords[OPERATOR], "staff"))
    return "\n".join(
        [
            "",
            f"Web UI    {description['web']}",
            f"REST      {description['web']}/api/docs/",
            f"Mailbox   {description['web']}/mailbox/",
            f"Gateway   {description['gateway']}",
            *(f"Login     {login}  {password}  ({role})" for login, password, role in logins),
            *(
                f"Key       {tenant['api_key']}  ({tenant['name']}: {', '.join(tenant['adapters'])})"
                for tenant in description["tenants"]
            ),
            "",
            f"curl -sSN {description['gateway']}/chat/completions \\",
            f"  -H 'Authorization: Bearer {tenant['api_key']}' -H 'Content-Type: application/json' \\",
            f"  -d '{json.dumps(body)}'",
            "",
            f"For scripts: {demo.config.description}. Logs: {demo.config.logs}. Ctrl-C stops everything.",
            *_about_sample(demo.config),
        ]
    )


def _about_sample(config: DemoConfig) -> list[str]:
    if not config.sample or config.sample_state.exists():
        return []
    return [
        "Sample data of two months is being added; an optimization is then measured for about two minutes. "
        "To remove it: python -m demo --remove-sample"
    ]


def _tell(line: str) -> None:
    print(f"    {line}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return 0 after a signal, 1 with one message after an error."""
    parser = argparse.ArgumentParser(
        prog="python -m demo", description="Runs the whole product on this machine."
    )
    parser.add_argument(
        "--port-base", type=int, default=DEFAULT_PORT_BASE, help="port of the web UI; the other ports follow"
    )
    parser.add_argument("--var", type=Path, default=ROOT / "var", help="folder for all files of the demo")
    parser.add_argument("--no-sample", action="store_true", help="add no sample data")
    parser.add_argument("--remove-sample", action="store_true", help="remove the sample data, and end")
    options = parser.parse_args(arguments)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _on_signal)
    started = time.monotonic()
    try:
        config = DemoConfig.from_env(
            port_base=options.port_base, var=options.var, sample=not options.no_sample
        )
        if options.remove_sample:
            return remove_sample(config)
        print("==> starting Graftwork", flush=True)
        if overruled := config.overruled:
            print(f"    the demo sets these itself, so your values have no effect: {', '.join(overruled)}")
        with running(config, progress=_tell) as demo:
            print(f"==> ready after {time.monotonic() - started:.1f} s\n{_welcome(demo)}", flush=True)
            demo.watch(progress=_tell)
    except _StopRequest as request:
        print(f"\n==> stopped by {request}", flush=True)
        return 0
    except DemoError as error:
        print(f"\ngraftwork demo: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
