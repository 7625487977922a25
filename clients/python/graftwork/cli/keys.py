"""`graftwork keys ...`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Annotated

import typer

from graftwork.cli.output import Json, note, show, show_rows
from graftwork.cli.session import client
from graftwork.models import Key

app = typer.Typer(help="Make, rotate and revoke API keys.", no_args_is_help=True)
PublicId = Annotated[str, typer.Argument(help="The key's public id.")]


@app.command("list")
def list_(
    all_: Annotated[bool, typer.Option("--all", help="Revoked and expired ones too.")] = False,
    limit: Annotated[int, typer.Option(help="At most so many rows.", min=1)] = 100,
    json: Json = False,
) -> None:
    """Keys, newest first."""
    with client() as found:
        rows = list(islice(found.keys.list(live=None if all_ else True), limit))
    heads = ("id", "name", "scopes", "made", "used", "expires", "state")
    cells = (
        (k.public_id, k.name, ", ".join(k.scopes), k.created_at, k.last_used_at, k.expires_at, _state(k))
        for k in rows
    )
    show_rows(rows, heads, cells, none="there are no keys")


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="What uses it.")],
    scope: Annotated[list[str], typer.Option(help="inference, manage, usage; repeatable.")] = ["inference"],  # noqa: B006
    days: Annotated[float | None, typer.Option(help="Expires after so many days.")] = None,
    model: Annotated[list[str] | None, typer.Option(help="Only this model; may be repeated.")] = None,
    network: Annotated[
        list[str] | None, typer.Option(help="Only from this network; may be repeated.")
    ] = None,
    json: Json = False,
) -> None:
    """Makes a key and prints it, once."""
    expires = None if days is None else datetime.now(UTC) + timedelta(days=days)
    with client() as found:
        key = found.keys.create(
            name,
            scopes=scope,
            expires_at=expires,
            allowed_models=model or None,
            allowed_networks=network or None,
        )
    note(f"key {key.public_id} is shown now and never again:")
    show(key, key.key)


@app.command()
def rotate(
    public_id: PublicId,
    overlap_hours: Annotated[float, typer.Option(help="How long the old secret stays right.")] = 0.0,
    json: Json = False,
) -> None:
    """Gives a key a new secret and prints it, once."""
    until = datetime.now(UTC) + timedelta(hours=overlap_hours) if overlap_hours else None
    with client() as found:
        key = found.keys.rotate(public_id, old_secret_until=until)
    note(f"the old secret is right until {until:%Y-%m-%d %H:%M} UTC" if until else "the old secret has ended")
    show(key, key.key)


@app.command()
def revoke(public_id: PublicId, json: Json = False) -> None:
    """Ends a key everywhere within a second."""
    with client() as found:
        found.keys.revoke(public_id)
    show({"revoked": public_id}, f"revoked {public_id}")


def _state(key: Key) -> str:
    if key.revoked_at:
        return "revoked"
    return "expired" if key.expires_at and key.expires_at <= datetime.now(UTC) else "live"
