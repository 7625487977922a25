"""`graftwork login`, `logout` and `whoami`."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from graftwork.cli.output import Json, note, show
from graftwork.cli.session import Session, client, config_path, forget, session
from graftwork.client import KEY_VARIABLE, Client
from graftwork.errors import ConfigurationError, PermissionDeniedError
from graftwork.models import Identity


def login(
    url: Annotated[
        str | None, typer.Option(help="URL of the control plane, such as https://graftwork.example.")
    ] = None,
    gateway_url: Annotated[
        str,
        typer.Option(
            help="URL of the gateway, which ends in /v1; requested from the control plane by default."
        ),
    ] = "",
    key_stdin: Annotated[bool, typer.Option(help="Read the API key from standard input.")] = False,
    json: Json = False,
) -> None:
    """Verify the address and API key, and store them in a file that only you can read."""
    address = url or session().url
    if not address:
        raise ConfigurationError("no URL is given: graftwork login --url https://...")
    key = sys.stdin.readline().strip() if key_stdin else typer.prompt("API key", hide_input=True).strip()
    with Client(address, key) as found:
        try:
            identity = found.whoami()
        except PermissionDeniedError:
            note("this key lacks the scope manage: it can only chat")
            identity = Identity()
    path = Session(address, key, gateway_url or identity.gateway_url).save()
    show(identity, f"logged in at {address} for tenant {identity.tenant or 'unknown'}; stored in {path}")


def logout(json: Json = False) -> None:
    """Delete the stored key. The key stays valid until `graftwork keys revoke`."""
    path = config_path()
    there = forget()
    show({"path": str(path), "removed": there}, f"removed {path}" if there else "no login is stored")
    if KEY_VARIABLE in os.environ:
        note(f"{KEY_VARIABLE} is still set in this shell")


def whoami(json: Json = False) -> None:
    """Show the key's owner, its tenant and its permissions."""
    with client() as found:
        identity = found.whoami()
    who = f"key {identity.key}" if identity.key else identity.email
    show(
        identity,
        f"{who}, {identity.role} of {identity.tenant} ({identity.tenant_name})",
        f"permissions: {', '.join(identity.permissions)}",
        f"gateway: {identity.gateway_url}",
    )
