"""`graftwork adapters ...`."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from graftwork.cli.completion import adapter_names
from graftwork.cli.output import Json, err, note, show, show_rows, speaks_json
from graftwork.cli.session import client
from graftwork.client import Client
from graftwork.errors import ConfigurationError, NotFoundError
from graftwork.folder import AdapterFolder
from graftwork.models import Adapter, AdapterCheck, Version

app = typer.Typer(help="Register and list adapters.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="The adapter's name.", autocompletion=adapter_names)]
Limit = Annotated[int, typer.Option(help="Maximum number of rows.", min=1)]


@app.command("list")
def list_(
    search: Annotated[str | None, typer.Option(help="Part of the name.")] = None,
    base_model: Annotated[str | None, typer.Option(help="Only adapters of this base model.")] = None,
    status: Annotated[str | None, typer.Option(help="Only adapters with a version in this status.")] = None,
    limit: Limit = 100,
    json: Json = False,
) -> None:
    """List adapters by name."""
    with client() as found:
        rows = found.adapters.list(
            search=search, base_model=base_model, status=status, page_size=min(limit, 500)
        )
        adapters = list(islice(rows, limit))
    show_rows(
        adapters,
        ("name", "base model", "default", "aliases"),
        (
            (
                adapter.name,
                adapter.base_model,
                adapter.default_version,
                ", ".join(alias.name for alias in adapter.aliases),
            )
            for adapter in adapters
        ),
        none="no adapters exist: graftwork adapters push ./folder --name <name>",
    )


@app.command("show")
def show_one(name: Name, json: Json = False) -> None:
    """Show an adapter with its versions and aliases."""
    with client() as found:
        adapter = found.adapters.get(name)
    default = adapter.default_version or "none yet"
    aliases = ", ".join(f"{alias.name} = v{alias.version}" for alias in adapter.aliases) or "none"
    lines = [f"{adapter.name} on {adapter.base_model}", f"bare name: {default}", f"aliases: {aliases}"]
    show(adapter, *lines, *(_line(version) for version in adapter.versions))


@app.command()
def versions(name: Name, limit: Limit = 100, json: Json = False) -> None:
    """List an adapter's versions, newest first."""
    with client() as found:
        rows = list(islice(found.adapters.versions(name), limit))
    heads = ("version", "status", "rank", "bytes", "sha256", "registered")
    cells = ((v.number, v.status, v.rank, v.size_bytes, v.sha256[:12], v.created_at) for v in rows)
    show_rows(rows, heads, cells, none=f"{name} has no versions")


@app.command()
def push(
    folder: Annotated[str, typer.Argument(help="PEFT folder, or a URI that the server may read.")],
    name: Annotated[str, typer.Option(help="The adapter's name; an existing adapter gets its next version.")],
    base_model: Annotated[str | None, typer.Option(help="Base model; required for a new adapter.")] = None,
    dataset: Annotated[str, typer.Option(help="Training data.")] = "",
    run_url: Annotated[str, typer.Option(help="URL of the training run: https://...")] = "",
    make_default: Annotated[
        bool | None,
        typer.Option(
            "--make-default/--keep-default",
            help="Make the version the default once ready, or keep the default; by default a name in "
            "use keeps its version.",
        ),
    ] = None,
    alias: Annotated[
        str | None, typer.Option(help="Point this alias at the version once it is ready.")
    ] = None,
    wait: Annotated[bool, typer.Option(help="Wait until the version is ready or refused.")] = True,
    json: Json = False,
) -> None:
    """Register an adapter and show its validation; exits with 1 if the version is refused."""
    if alias and not wait:
        raise ConfigurationError("--alias needs the version to be ready: leave out --no-wait")
    with client() as found:
        base = base_model or _base_of(found, name, folder)
        if "://" in folder:
            version = found.adapters.register(
                folder,
                name=name,
                base_model=base,
                dataset=dataset,
                run_url=run_url,
                make_default=make_default,
            )
        else:
            options = {"dataset": dataset, "run_url": run_url, "make_default": make_default}
            version = _upload(found, folder, name, base, options)
        note(f"registered {name}@v{version.number}")
        if wait:
            version = _watch(found, version)
        if alias:
            found.aliases.set(name, alias, version=version.number)
            note(f"{name}@{alias} is v{version.number} now")
        if wait:
            _tell_default(found.adapters.get(name), version.number)
    show(version, _line(version))


@app.command()
def default(
    name: Name,
    version: Annotated[
        str, typer.Argument(help="Version number, or `newest` to follow the newest ready version.")
    ],
    json: Json = False,
) -> None:
    """Set the default version, which serves the bare name."""
    if version != "newest" and not version.isdecimal():
        raise ConfigurationError(f"{version!r} is not a version: give its number, or newest")
    with client() as found:
        adapter = found.adapters.pin(name, None if version == "newest" else int(version))
    show(adapter, f"callers of {name} get v{adapter.default_version}")


@app.command()
def rollback(name: Name, json: Json = False) -> None:
    """Restore the previous default version of the bare name."""
    with client() as found:
        adapter = found.adapters.rollback(name)
    show(adapter, f"callers of {name} get v{adapter.default_version}")


@app.command()
def delete(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation.")] = False,
    json: Json = False,
) -> None:
    """Delete an adapter with all its versions and aliases."""
    if not yes:
        typer.confirm(f"delete {name} with all its versions and aliases?", abort=True, err=True)
    with client() as found:
        found.adapters.delete(name)
    show({"deleted": name}, f"deleted {name}")


def _base_of(found: Client, name: str, folder: str) -> str:
    """Returns the existing adapter's base model, else the server's model that the folder names."""
    try:
        return found.adapters.get(name).base_model
    except NotFoundError:
        named = None if "://" in folder else AdapterFolder(Path(folder)).base_model
        known = [model.name for model in found.adapters.base_models()]
        fits = [model for model in known if named and model.lower() == named.rpartition("/")[2].lower()]
        if fits:
            return fits[0]
        raise ConfigurationError(
            f"no base model is given for {name}: --base-model {' or '.join(known) or '(none is registered)'}"
        ) from None


def _tell_default(adapter: Adapter, number: int) -> None:
    note(f"callers of {adapter.name} get v{adapter.default_version}")
    if adapter.default_version != number:
        note(f"to make v{number} the default: graftwork adapters default {adapter.name} {number}")


def _upload(found: Client, folder: str, name: str, base: str, options: dict[str, Any]) -> Version:
    def tell(check: AdapterCheck) -> None:
        if check.default_version is not None:
            then = "until the new version is ready" if check.becomes_default else "also once it is ready"
            note(f"callers of {name} get v{check.default_version}, {then}")

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=speaks_json()) as bar:
        task = bar.add_task("sending", total=None)
        return found.adapters.push(
            folder,
            name=name,
            base_model=base,
            **options,
            on_check=tell,
            progress=lambda sent, total: bar.update(task, completed=sent, total=total),
        )


def _watch(found: Client, version: Version) -> Version:
    reported: set[tuple[str, str]] = set()
    ends = ("done", "warned", "skipped", "failed")

    def tell(now: Version) -> None:
        for step in now.steps:
            if step.status in ends and (step.name, step.status) not in reported:
                reported.add((step.name, step.status))
                note(f"  {step.status}: {step.title}" + (f" ({step.detail})" if step.detail else ""))

    return found.adapters.wait(version.adapter, version.number, on_change=tell)


def _line(version: Version) -> str:
    detail = version.reason or f"rank {version.rank}, {version.size_bytes} bytes, {version.sha256[:12]}"
    lineage = ", ".join(text for text in (version.dataset, version.run_url) if text)
    trained = f"\n  trained: {lineage}" if lineage else ""
    return f"v{version.number}: {version.status}" + (f", {detail}" if version.settled else "") + trained
