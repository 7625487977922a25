"""`graftwork alias ...`."""

from __future__ import annotations

from typing import Annotated

import typer

from graftwork.cli.completion import adapter_names
from graftwork.cli.output import Json, show, show_rows
from graftwork.cli.session import client
from graftwork.errors import ChangedError, ConfigurationError, Problem
from graftwork.models import Alias, AliasState

app = typer.Typer(help="Manage aliases, the names that applications call.", no_args_is_help=True)
Adapter = Annotated[str, typer.Argument(help="The adapter's name.", autocompletion=adapter_names)]
Name = Annotated[str, typer.Argument(help="The alias, such as prod.")]


@app.command("list")
def list_(adapter: Adapter, json: Json = False) -> None:
    """List an adapter's aliases."""
    with client() as found:
        rows = list(found.aliases.list(adapter))
    show_rows(
        rows,
        ("alias", "version", "split", "moved"),
        ((row.name, row.version, _split(row), row.moved_at) for row in rows),
        none=f"{adapter} has no aliases: graftwork alias set {adapter} prod <version>",
    )


@app.command("set")
def set_(
    adapter: Adapter,
    name: Name,
    version: Annotated[str, typer.Argument(help="Version, such as 7, or a split, such as 6=90,7=10.")],
    if_version: Annotated[
        int | None, typer.Option(help="Change the alias only if its current version is this one.")
    ] = None,
    json: Json = False,
) -> None:
    """Point an alias at a version, or split it among several; effective within a second."""
    with client() as found:
        etag = None
        if if_version is not None:
            path = f"/adapters/{adapter}/aliases/{name}"
            # Read the tag first: a move between the two reads is then refused, not overwritten.
            etag = found.etag(path)
            if (now := found.aliases.get(adapter, name)).version != if_version:
                said = f"{adapter}@{name} is at version {now.version}, not {if_version}"
                raise ChangedError(412, [Problem("precondition_failed", said)])
        if "=" in version:
            alias = found.aliases.split(adapter, name, _arms(version), etag=etag)
        else:
            alias = found.aliases.set(adapter, name, version=_number(version), etag=etag)
    show(alias, f"{adapter}@{name}: {_split(alias) or f'v{alias.version}'}")


@app.command()
def delete(adapter: Adapter, name: Name, json: Json = False) -> None:
    """Delete an alias; requests for it then get 404."""
    with client() as found:
        found.aliases.delete(adapter, name)
    show({"deleted": f"{adapter}@{name}"}, f"deleted {adapter}@{name}")


@app.command()
def rollback(adapter: Adapter, name: Name, json: Json = False) -> None:
    """Revert an alias's newest change."""
    with client() as found:
        alias = found.aliases.rollback(adapter, name)
    show(alias, f"{adapter}@{name}: {_split(alias) or f'v{alias.version}'}")


@app.command()
def history(adapter: Adapter, name: Name, json: Json = False) -> None:
    """List an alias's changes, newest first."""
    with client() as found:
        rows = list(found.aliases.history(adapter, name))
    show_rows(
        rows,
        ("change", "from", "to", "by", "when"),
        ((row.id, _state(row.before), _state(row.after), row.by, row.created_at) for row in rows),
        none=f"{adapter}@{name} has no history",
    )


def _state(state: AliasState | None) -> str:
    if state is None:
        return "nothing"
    return ", ".join(f"v{version} {percent}%" for version, percent in state.arms) or f"v{state.version}"


def _split(alias: Alias) -> str:
    return ", ".join(f"v{arm.version} {arm.percent}%" for arm in alias.arms)


def _number(text: str) -> int:
    if not text.removeprefix("v").isdigit():
        raise ConfigurationError(f"{text!r} is not a version: give a number, or a split such as 6=90,7=10")
    return int(text.removeprefix("v"))


def _arms(text: str) -> dict[int, int]:
    try:
        pairs = [part.split("=") for part in text.split(",")]
        return {_number(version): int(percent) for version, percent in pairs}
    except ValueError as error:
        raise ConfigurationError(f"{text!r} is not a split: write it as 6=90,7=10") from error
