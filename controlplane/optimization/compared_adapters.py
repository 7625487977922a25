"""Adapters that a comparison asks by: found in the routes at first, brought to the host when it runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from contracts.adapters.reference import ADAPTER_FILES, POOLING_FILES, EngineName, adapter_digest
from contracts.errors import ContractError
from controlplane.artifacts.store import artifact_store
from controlplane.catalog.models import BaseModel
from controlplane.errors import InvalidInputError, NotFoundError
from controlplane.optimization.models import PromptSet
from controlplane.optimization.prompt_sets import prompts_read
from controlplane.routes.selectors import route_refs

MOST: Final = 16
_TAKEN: Final = ("base", "texts", "changes")
"""What a result calls other things."""
_CHUNK: Final = 4 << 20


def adapters_chosen(*, base_model: BaseModel, adapters: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Each with `name` in the result, `engine_name`, `sha256` of its files and `prompts`, "" for the common.

    Raises:
        InvalidInputError: too many, one twice, or a name that is none.
        NotFoundError: no route of this base leads to it, or there is no such prompt set.
    """
    if len(adapters) > MOST:
        raise _wrong(f"a comparison has at most {MOST} adapters")
    names = [item["engine_name"] for item in adapters]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise _wrong(f"adapter {twice[0]} is listed twice")
    try:
        refs = route_refs(base_model=base_model.name, names=names)
    except ContractError as error:
        raise _wrong(str(error)) from error
    found: list[dict[str, str]] = []
    for item in adapters:
        if (ref := refs.get(item["engine_name"])) is None:
            raise NotFoundError(f"no route of {base_model.name} leads to {item['engine_name']!r}")
        prompts = item.get("prompts", "")
        if prompts and not PromptSet.objects.filter(pk=prompts).exists():
            raise NotFoundError(
                f"prompt set {prompts!r} does not exist: upload it to /api/v1/prompt-sets first"
            )
        name = _apart(EngineName.parse(ref.name).adapter, {other["name"] for other in found})
        found.append({"name": name, "engine_name": ref.name, "sha256": ref.sha256, "prompts": prompts})
    return found


def adapters_bring(
    adapters: Sequence[Mapping[str, str]], folder: Path, *, heartbeat: Callable[[], None]
) -> list[dict[str, Any]]:
    """The `adapters` of an order, their files and prompts below `folder`.

    Raises:
        InvalidInputError: files are gone, or are not what their digest says.
        UnavailableError: the store does not answer.
    """
    found: list[dict[str, Any]] = []
    for item in adapters:
        place = folder / "adapters" / item["sha256"]
        place.mkdir(parents=True, exist_ok=True)
        pooling = (name for name in POOLING_FILES if artifact_store().size(_key(item, name)) is not None)
        names = (*ADAPTER_FILES, *pooling)
        digests = {name: _bring(item, name, place / name, heartbeat) for name in names}
        if adapter_digest(digests) != item["sha256"]:
            raise _wrong(f"the store's files of {item['engine_name']} were changed: register it again")
        told: dict[str, Any] = {"name": item["name"], "folder": str(place)}
        if item["prompts"]:
            prompts = PromptSet.objects.filter(pk=item["prompts"]).first()
            if prompts is None:
                raise _wrong(f"the prompts of {item['name']} are gone: upload them again")
            path = folder / f"{item['prompts']}.jsonl"
            path.write_bytes(prompts_read(prompts=prompts))
            told["prompts"] = str(path)
        found.append(told)
    return found


def _key(item: Mapping[str, str], name: str) -> str:
    return f"adapters/{item['sha256']}/{name}"


def _bring(item: Mapping[str, str], name: str, path: Path, heartbeat: Callable[[], None]) -> str:
    store, key, digest = artifact_store(), _key(item, name), hashlib.sha256()
    path.parent.mkdir(exist_ok=True)
    if store.size(key) is None:
        raise _wrong(f"the files of {item['engine_name']} are no longer in the artifact store")
    with store.open(key) as stream, path.open("wb") as target:
        while data := stream.read(_CHUNK):
            target.write(data)
            digest.update(data)
            heartbeat()
    return digest.hexdigest()


def _apart(name: str, taken: set[str]) -> str:
    """Two tenants' adapters may have one name."""
    found, number = name, 2
    while found in taken or found in _TAKEN:
        found, number = f"{name[:55]}-{number}", number + 1
    return found


def _wrong(message: str) -> InvalidInputError:
    return InvalidInputError(message, field="adapters")
