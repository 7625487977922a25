"""`graftwork convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graftwork.cli.output import Json, show
from graftwork.convert_archive import convert_all


def convert(
    source: Annotated[
        Path,
        typer.Argument(help="Folder with adapter_model.bin or shards; or a folder or archive of several."),
    ],
    target: Annotated[Path, typer.Argument(help="New folder or archive to write, of the same kind.")],
    json: Json = False,
) -> None:
    """Convert pickled or sharded adapters to safetensors on this machine; requires torch.

    SOURCE is an adapter's folder, a folder of several, or a .zip, .tar.gz, .tgz or .tar archive, such as
    SageMaker's adapters.tar.gz. Of several adapters, all other files are kept.
    """
    found = convert_all(source, target)
    if found == ["."] and target.is_dir():
        text = f"wrote {target}: graftwork adapters push {target} --name <name>"
    else:
        text = f"wrote {target}: converted {len(found)} of its adapters, {', '.join(found)}"
    show({"folder" if target.is_dir() else "archive": str(target), "adapters": found}, text)
