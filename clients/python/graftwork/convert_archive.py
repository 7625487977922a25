"""Converts all adapters of an archive or a folder, such as SageMaker's `adapters.tar.gz`, to safetensors.

Entries are copied from archive to archive, never unpacked, so links and odd names in it lead nowhere. Only
pickles and shards are written to a temporary folder, under fixed names.
"""

from __future__ import annotations

import copy
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Final, Literal

from graftwork.convert import PICKLES, SECONDS, check_libraries, convert, make_weights
from graftwork.errors import ConfigurationError
from graftwork.folder import CONFIG, WEIGHTS
from graftwork.shards import SHARD_INDEX

_SHARD: Final = "adapter_model-*-of-*.safetensors"
_TARS: Final[Mapping[str, Literal["w", "w:gz"]]] = {".tar.gz": "w:gz", ".tgz": "w:gz", ".tar": "w"}
_Read = Callable[[str], IO[bytes]]
"""Opens a file of the source by its name in it."""


def convert_all(source: Path, target: Path, *, seconds: float = SECONDS) -> list[str]:
    """Writes `target` like `source`, with safetensors in place of every adapter's pickle or shards.

    All other files are kept as they are. An adapter is a folder with adapter_config.json.

    Args:
        source: an adapter's folder, a folder of several, or a .zip, .tar.gz, .tgz or .tar archive.
        target: of the same kind; it does not exist yet, and on an error it still does not.
        seconds: time limit of each adapter.

    Returns:
        The folders of the converted adapters within `source`; "." for its root.

    Raises:
        ConfigurationError: nothing is to be converted, `target` is of another kind, or as `convert`.
    """
    if (source / CONFIG).is_file():
        convert(source, target, seconds=seconds)
        return ["."]
    check_libraries()
    if target.exists():
        raise ConfigurationError(f"{target} already exists: name a new one")
    kind = _kind(source)
    if source.is_file() and _kind(target) != kind:
        raise ConfigurationError(f"{target} must end in {kind}, as {source.name} does")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".graftwork-") as scratch:
        made, folder = Path(scratch) / "made", Path(scratch) / "weights"
        if source.is_dir():
            found = _convert_folder(source, made, folder, seconds)
        elif kind == ".zip":
            found = _convert_zip(source, made, folder, seconds)
        else:
            found = _convert_tar(source, made, folder, seconds)
        made.rename(target)
    return found


def _kind(path: Path) -> str:
    """Returns the archive's ending; "" for a folder. Raises ConfigurationError for any other file."""
    found = next((end for end in (".zip", *_TARS) if path.name.lower().endswith(end)), "")
    if path.is_file() and not found:
        raise ConfigurationError(f"{path} is not a folder, .zip, .tar.gz, .tgz or .tar archive")
    if not path.exists() and not found:
        raise ConfigurationError(f"{path} does not exist, or does not end as the source does")
    return found


def _to_convert(names: Sequence[str]) -> dict[str, list[str]]:
    """Returns the pickle, or the shards and their index, of each adapter: by the adapter's folder.

    Adapters that already have their weights in one file of safetensors are left out.
    """
    by_folder: dict[str, dict[str, str]] = {}
    for name in names:
        path = PurePosixPath(name)
        by_folder.setdefault(str(path.parent), {})[path.name] = name
    found: dict[str, list[str]] = {}
    for folder, files in by_folder.items():
        if CONFIG not in files or WEIGHTS in files:
            continue
        if SHARD_INDEX in files:
            shards = [name for name in files if PurePosixPath(name).match(_SHARD)]
            found[folder] = [files[name] for name in (SHARD_INDEX, *shards)]
        elif pickle := next((name for name in PICKLES if name in files), None):
            found[folder] = [files[pickle]]
    return found


def _demand_some(found: Mapping[str, object], source: Path) -> None:
    if not found:
        raise ConfigurationError(
            f"{source} holds no folder with {CONFIG} and one of {', '.join((*PICKLES, SHARD_INDEX))}: there"
            " is nothing to convert"
        )


@contextmanager
def _weights(folder: Path, names: Sequence[str], read: _Read, where: str, seconds: float) -> Iterator[Path]:
    """Yields a file of safetensors made of the files `names`, in `folder`, which is removed afterwards."""
    source, made = folder / "source", folder / "made"
    source.mkdir(parents=True)
    made.mkdir()
    try:
        for name in names:
            with read(name) as stream, (source / PurePosixPath(name).name).open("wb") as file:
                shutil.copyfileobj(stream, file)
        try:
            make_weights(source, made, seconds=seconds)
        except ConfigurationError as error:
            raise ConfigurationError(f"adapter {where}: {str(error).replace(str(source), where)}") from error
        yield made / WEIGHTS
    finally:
        shutil.rmtree(folder)


def _convert_folder(source: Path, target: Path, folder: Path, seconds: float) -> list[str]:
    names = [path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()]
    found = _to_convert(names)
    _demand_some(found, source)
    replaced = {name for files in found.values() for name in files}

    def left_out(place: str, entries: list[str]) -> set[str]:
        inside = Path(place).relative_to(source)
        return {entry for entry in entries if (inside / entry).as_posix() in replaced}

    shutil.copytree(source, target, symlinks=True, ignore=left_out)
    for where, files in found.items():
        read: _Read = lambda name: (source / name).open("rb")  # noqa: E731
        with _weights(folder, files, read, where, seconds) as weights:
            # A link that leads nowhere would have the file written where it points to.
            (target / where / WEIGHTS).unlink(missing_ok=True)
            shutil.copyfile(weights, target / where / WEIGHTS)
    return sorted(found)


def _convert_tar(source: Path, target: Path, folder: Path, seconds: float) -> list[str]:
    try:
        with tarfile.open(source) as old, tarfile.open(target, _TARS[_kind(source)]) as new:
            found = _to_convert([member.name for member in old.getmembers() if member.isfile()])
            _demand_some(found, source)
            replaced = {files[0]: where for where, files in found.items()}
            dropped = {name for files in found.values() for name in files[1:]}

            def read(name: str) -> IO[bytes]:
                stream = old.extractfile(name)
                if stream is None:
                    raise ConfigurationError(f"{name} in {source} is no file")
                return stream

            for member in old.getmembers():
                if member.name in dropped:
                    continue
                if (where := replaced.get(member.name)) is not None:
                    with _weights(folder, found[where], read, where, seconds) as weights:
                        entry = copy.copy(member)
                        entry.name = str(PurePosixPath(member.name).with_name(WEIGHTS))
                        # An extended header of the old name or size would win over these.
                        entry.pax_headers = {}
                        entry.size = weights.stat().st_size
                        with weights.open("rb") as stream:
                            new.addfile(entry, stream)
                else:
                    new.addfile(member, old.extractfile(member) if member.isfile() else None)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ConfigurationError(f"{source} cannot be read: {error}") from error
    return sorted(found)


def _convert_zip(source: Path, target: Path, folder: Path, seconds: float) -> list[str]:
    try:
        with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
            found = _to_convert([item.filename for item in old.infolist() if not item.is_dir()])
            _demand_some(found, source)
            replaced = {files[0]: where for where, files in found.items()}
            dropped = {name for files in found.values() for name in files[1:]}
            for item in old.infolist():
                if item.filename in dropped:
                    continue
                entry = zipfile.ZipInfo(item.filename, item.date_time)
                entry.compress_type, entry.external_attr = item.compress_type, item.external_attr
                if (where := replaced.get(item.filename)) is not None:
                    entry.filename = str(PurePosixPath(item.filename).with_name(WEIGHTS))
                    with _weights(folder, found[where], old.open, where, seconds) as weights:
                        _add(new, entry, weights.open("rb"))
                elif item.is_dir():
                    new.writestr(entry, b"")
                else:
                    _add(new, entry, old.open(item))
    except (zipfile.BadZipFile, EOFError, OSError, RuntimeError, NotImplementedError) as error:
        raise ConfigurationError(f"{source} cannot be read: {error}") from error
    return sorted(found)


def _add(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, stream: IO[bytes]) -> None:
    with stream, archive.open(entry, "w", force_zip64=True) as file:
        shutil.copyfileobj(stream, file)
