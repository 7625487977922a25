"""Changes of adapters. Validation itself is `validation.version_validate`, run by a Celery task."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, BinaryIO, Final

from django.core.files.uploadedfile import UploadedFile
from django.db import transaction
from django.db.models import Max

from controlplane.adapters.artifact_store import artifact_store
from controlplane.adapters.models import Adapter, AdapterVersion, Alias
from controlplane.adapters.selectors import adapter_route, version_get
from controlplane.adapters.sources import check_source_uri
from controlplane.adapters.steps import first_steps
from controlplane.catalog.models import BaseModel
from controlplane.errors import ConflictError, InvalidInputError, NotFoundError, UnavailableError
from controlplane.queue import enqueue
from controlplane.routes.services import route_remove, route_set
from controlplane.tenants.models import Tenant, User
from worker_engine.adapters.config import MAX_ADAPTER_BYTES, MAX_CONFIG_BYTES
from worker_engine.protocol import ADAPTER_FILES, SLUG_PATTERN

VALIDATE_TASK: Final = "adapters.validate"
FILE_LIMITS: Final = {ADAPTER_FILES[0]: MAX_CONFIG_BYTES, ADAPTER_FILES[1]: MAX_ADAPTER_BYTES}
"""Bytes accepted of each file."""
_PICKLE_SUFFIXES: Final = (".bin", ".pt", ".pth", ".pkl", ".ckpt")


def adapter_register(
    *,
    tenant: Tenant,
    name: str,
    base_model: BaseModel,
    files: Mapping[str, BinaryIO] | None = None,
    uri: str | None = None,
    created_by: User | None = None,
) -> AdapterVersion:
    """Takes in a new adapter, or the next version of one that there is, and has it validated.

    Args:
        files: the two ADAPTER_FILES by name (see `files_by_name` for uploads); or
        uri: folder that holds them: `file://` under an import root, or `s3://` in an import bucket.

    Returns:
        the version, `pending`; a Celery task makes it `ready` or `refused`.

    Raises:
        InvalidInputError: the name, the files or the URI are not acceptable. Nothing is left behind.
        ConflictError: the name is a base model's, or belongs to an adapter of another base model.
    """
    _check_name(tenant, name, base_model)
    if (files is None) == (uri is None):
        raise InvalidInputError("send either files or a uri", field="files")
    if uri is not None:
        return _record(tenant, name, base_model, created_by, source=check_source_uri(uri))
    staging = f"incoming/{uuid.uuid4().hex}"
    store = artifact_store()
    try:
        _check_file_names(files or {})
        for file_name, stream in (files or {}).items():
            store.put(f"{staging}/{file_name}", stream, limit=FILE_LIMITS[file_name])
        return _record(tenant, name, base_model, created_by, staging=staging)
    except BaseException:
        # The first error is the one to tell, also where the store cannot even be cleaned.
        with suppress(UnavailableError):
            store.remove(staging)
        raise


def files_by_name(uploads: Iterable[UploadedFile[Any]]) -> dict[str, BinaryIO]:
    """Uploads by file name, for `adapter_register`. Raises InvalidInputError on a name sent twice."""
    files: dict[str, BinaryIO] = {}
    for upload in uploads:
        if (file_name := upload.name or "") in files:
            raise InvalidInputError(f"the file {file_name} was sent twice", field="files")
        files[file_name] = upload  # type: ignore[assignment]  # an UploadedFile reads as a binary stream
    return files


@transaction.atomic
def alias_move(*, adapter: Adapter, name: str, number: int) -> Alias:
    """Points an alias at a ready version, making it if need be; in force within a second.

    Raises:
        InvalidInputError: the alias is no slug, or reads like a version (`v3`).
        NotFoundError: there is no such version.
        ConflictError: the version is not ready.
    """
    if SLUG_PATTERN.fullmatch(name) is None:
        raise InvalidInputError(
            "an alias is 1-63 lower-case letters, digits and inner hyphens", field="alias"
        )
    if name[0] == "v" and name[1:].isdigit():
        raise InvalidInputError(f"{name!r} reads like a version number: choose another alias", field="alias")
    adapter = _locked(adapter)
    version = _ready(adapter, number)
    alias, _ = Alias.objects.update_or_create(adapter=adapter, name=name, defaults={"version": version})
    adapter_publish(adapter=adapter)
    return alias


@transaction.atomic
def alias_remove(*, alias: Alias) -> None:
    """Removes an alias; calls by it are then told that the model is unknown."""
    adapter = _locked(alias.adapter)
    Alias.objects.filter(pk=alias.pk).delete()
    adapter_publish(adapter=adapter)


@transaction.atomic
def adapter_pin(*, adapter: Adapter, number: int | None) -> Adapter:
    """Makes the bare name mean version `number`; None: the newest ready one again.

    Raises:
        NotFoundError: there is no such version.
        ConflictError: the version is not ready.
    """
    adapter = _locked(adapter)
    adapter.pinned = None if number is None else _ready(adapter, number)
    adapter.save(update_fields=["pinned"])
    adapter_publish(adapter=adapter)
    return adapter


@transaction.atomic
def adapter_delete(*, adapter: Adapter) -> None:
    """Removes an adapter with its versions and aliases, and its route. Usage records stay."""
    adapter = _locked(adapter)
    staged = [staging for staging in adapter.versions.values_list("staging", flat=True) if staging]
    route_remove(path=f"adapters/{adapter.tenant_id}/{adapter.name}")
    adapter.delete()

    def remove_files() -> None:
        for staging in staged:
            artifact_store().remove(staging)

    transaction.on_commit(remove_files)


def staging_discard(*, version: AdapterVersion) -> None:
    """Removes a settled version's staged files. The row forgets them last, so nothing is lost track of."""
    if version.staging:
        artifact_store().remove(version.staging)
        AdapterVersion.objects.filter(pk=version.pk, staging=version.staging).update(staging="")


def adapter_publish(*, adapter: Adapter) -> None:
    """Puts the adapter's rows, as they are in this transaction, into the route table."""
    path = f"adapters/{adapter.tenant_id}/{adapter.name}"
    if (entry := adapter_route(adapter=adapter)) is None:
        route_remove(path=path)
    else:
        route_set(path=path, entry=entry)


def _check_name(tenant: Tenant, name: str, base_model: BaseModel) -> None:
    if SLUG_PATTERN.fullmatch(name) is None:
        raise InvalidInputError(
            "an adapter's name is 1-63 lower-case letters, digits and inner hyphens", field="name"
        )
    if BaseModel.objects.filter(name=name).exists():
        raise ConflictError(f"{name!r} is a base model: choose another name for the adapter")
    adapter = Adapter.objects.filter(tenant=tenant, name=name).select_related("base_model").first()
    if adapter is not None:
        _check_base(adapter, base_model)


def _check_base(adapter: Adapter, base_model: BaseModel) -> None:
    if adapter.base_model_id != base_model.pk:
        raise ConflictError(
            f"adapter {adapter.name!r} belongs to base model {adapter.base_model.name}: a version of it"
            f" cannot be of {base_model.name}; register it under another name"
        )


def _check_file_names(files: Mapping[str, BinaryIO]) -> None:
    for file_name in files:
        if file_name.endswith(_PICKLE_SUFFIXES):
            raise InvalidInputError(pickle_refusal(file_name), field="files")
    if set(files) != set(ADAPTER_FILES):
        got = ", ".join(sorted(files)) or "none"
        raise InvalidInputError(
            f"send exactly the files {' and '.join(ADAPTER_FILES)}; got {got}", field="files"
        )


def pickle_refusal(file_name: str) -> str:
    """Why a pickle is not taken and what to do about it."""
    return (
        f"{file_name} is a pickle, which can run code when it is loaded: convert it with PEFT,"
        " model.save_pretrained(folder, safe_serialization=True), and send adapter_model.safetensors"
    )


@transaction.atomic
def _record(
    tenant: Tenant,
    name: str,
    base_model: BaseModel,
    created_by: User | None,
    *,
    staging: str = "",
    source: str = "",
) -> AdapterVersion:
    adapter, _ = Adapter.objects.get_or_create(
        tenant=tenant, name=name, defaults={"base_model": base_model, "created_by": created_by}
    )
    # Two registrations of one name at once: the lock makes the second count the first's version, and
    # see which base model the first chose.
    adapter = _locked(adapter)
    _check_base(adapter, base_model)
    newest = adapter.versions.aggregate(newest=Max("number"))["newest"] or 0
    version = AdapterVersion.objects.create(
        adapter=adapter,
        number=newest + 1,
        steps=first_steps(),
        staging=staging,
        source=source,
        created_by=created_by,
    )
    enqueue(VALIDATE_TASK, version_id=version.pk)
    return version


def _locked(adapter: Adapter) -> Adapter:
    """The adapter, locked until the transaction's end. Raises NotFoundError when it was deleted meanwhile."""
    rows = Adapter.objects.select_for_update(of=("self",)).select_related("base_model")
    if (locked := rows.filter(pk=adapter.pk).first()) is None:
        raise NotFoundError(f"adapter {adapter.name!r} was deleted meanwhile")
    return locked


def _ready(adapter: Adapter, number: int) -> AdapterVersion:
    version = version_get(adapter=adapter, number=number)
    if version.status != AdapterVersion.Status.READY:
        raise ConflictError(f"version {number} of {adapter.name} is {version.status}, not ready")
    return version
