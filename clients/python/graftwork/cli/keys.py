"""`graftwork keys ...`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Annotated

import typer

from graftwork.cli.output import Json, note, show, show_rows
from graftwork.cli.session import client
from graftwork.models import Key

app = typer.Typer(help="Create, rotate and revoke API keys.", no_args_is_help=True)
PublicId = Annotated[str, typer.Argument(help="The key's public ID.")]


@app.command("list")
def list_(
    all_: Annotated[bool, typer.Option("--all", help="Include revoked and expired keys.")] = False,
    limit: Annotated[int, typer.Option(help="Maximum number of rows.", min=1)] = 100,
    json: Json = False,
) -> None:
    """List keys, newest first."""
    with client() as found:
        rows = list(islice(found.keys.list(live=None if all_ else True), limit))
    heads = ("id", "name", "scopes", "made", "used", "expires", "state")
    cells = (
        (k.public_id, k.name, ", ".join(k.scopes), k.created_at, k.last_used_at, k.expires_at, _state(k))
        for k in rows
    )
    show_rows(rows, heads, cells, none="no keys exist")


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Name of the key, such as its application.")],
    scope: Annotated[list[str], typer.Option(help="inference, manage or usage; repeatable.")] = ["inference"],  # noqa: B006
    days: Annotated[float | None, typer.Option(help="Days until the key expires.")] = None,
    model: Annotated[list[str] | None, typer.Option(help="Allowed model; repeatable.")] = None,
    network: Annotated[list[str] | None, typer.Option(help="Allowed client network; repeatable.")] = None,
    json: Json = False,
) -> None:
    """Create a key and print it once."""
    expires = None if days is None else datetime.now(UTC) + timedelta(days=days)
    with client() as found:
        key = found.keys.create(
            name,
            scopes=scope,
            expires_at=expires,
            allowed_models=model or None,
            allowed_networks=network or None,
        )
    note(f"key {key.public_id} is shown only once:")
    show(key, key.key)


@app.command()
def rotate(
    public_id: PublicId,
    overlap_hours: Annotated[
        float, typer.Option(help="Validity of the old secret after the rotation.")
    ] = 0.0,
    json: Json = False,
) -> None:
    """Give a key a new secret and print it once."""
    until = datetime.now(UTC) + timedelta(hours=overlap_hours) if overlap_hours else None
    with client() as found:
        key = found.keys.rotate(public_id, old_secret_until=until)
    note(
        f"the old secret is valid until {until:%Y-%m-%d %H:%M} UTC"
        if until
        else "the old secret is no longer valid"
    )
    show(key, key.key)


@app.command()
def revoke(public_id: PublicId, json: Json = False) -> None:
    """Revoke a key; effective everywhere within a second."""
    with client() as found:
        found.keys.revoke(public_id)
    show({"revoked": public_id}, f"revoked {public_id}")


def _state(key: Key) -> str:
    if key.revoked_at:
        return "revoked"
    return "expired" if key.expires_at and key.expires_at <= datetime.now(UTC) else "live"
