"""`graftwork convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graftwork.cli.output import Json, show
from graftwork.convert import convert as convert_folder


def convert(
    source: Annotated[Path, typer.Argument(help="Folder with adapter_model.bin or shards.")],
    target: Annotated[Path, typer.Argument(help="New folder to write.")],
    json: Json = False,
) -> None:
    """Convert a pickled or sharded adapter to safetensors on this machine; requires torch."""
    convert_folder(source, target)
    show({"folder": str(target)}, f"wrote {target}: graftwork adapters push {target} --name <name>")
