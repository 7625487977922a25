"""Register and remove copies."""

from __future__ import annotations

import datetime as dt
import re
import secrets
from collections.abc import Mapping
from typing import Any, Final

from django.db import transaction
from django.utils import timezone

from contracts.base_routes import SageMakerTarget
from controlplane.catalog.models import BaseModel
from controlplane.deployments.capabilities import UNKNOWN_ENGINE, RunningEngine, engine_check
from controlplane.deployments.copies.publishing import publish_locked
from controlplane.deployments.models import Copy, Deployment, RemovedCopy
from controlplane.deployments.models.credentials import credentials_changed, credentials_column
from controlplane.deployments.validation import REGION, base_url, credentials_check
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.platform.audit.services import audit_record
from controlplane.platform.audit.snapshot import snapshot
from controlplane.webhooks.outbox import event_emit

_NAME: Final = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
"""Names that SageMaker accepts for an endpoint or inference component."""
KEEP_REMOVED: Final = dt.timedelta(days=1)
"""How long removed copies are known: longer than the windows of alarms and of the export to CloudWatch."""


@transaction.atomic
def copy_register(
    *,
    base_model: BaseModel,
    kind: str,
    url: str,
    loads_adapters: bool = False,
    sagemaker: SageMakerTarget | None = None,
    deployment: Deployment | None = None,
    canary: tuple[str, int] = ("", 0),
    engine: RunningEngine = UNKNOWN_ENGINE,
    token: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Copy:
    """Register a server for `base_model` with the gateways.

    Registering the same location again updates and returns its existing copy.

    Args:
        deployment: owner of a new copy; an existing copy keeps its owner.
        engine: what serves it; unknown by default, and then every adapter is tried there.
        canary: name and percent of the exact share of callers for all copies of this name; see `CanaryRoute`.
        token, headers: what an `openai_http` server wants with each request, stored sealed; None keeps that
            of an existing copy.

    Raises:
        InvalidInputError: the kind is unknown, or a value that it needs is missing or malformed.
    """
    if kind not in Copy.Kind.values:
        raise InvalidInputError(f"kind must be one of {', '.join(Copy.Kind.values)}", field="kind")
    if loads_adapters and kind != Copy.Kind.OPENAI_HTTP:
        raise InvalidInputError(
            "loads_adapters is valid only for copies of kind openai_http", field="loads_adapters"
        )
    if (token or headers) and kind != Copy.Kind.OPENAI_HTTP:
        raise InvalidInputError(
            "token and headers are valid only for copies of kind openai_http", field="token"
        )
    if (kind == Copy.Kind.SAGEMAKER) != (sagemaker is not None):
        raise InvalidInputError(
            "sagemaker is required for copies of kind sagemaker, and valid only for them", field="sagemaker"
        )
    location = _location_columns(sagemaker)
    location["url"] = base_url(url) if url or sagemaker is None else ""
    engine_check(engine.engine, engine.version, engine.max_rank)
    settings: dict[str, Any] = {
        "kind": kind,
        "loads_adapters": loads_adapters,
        "engine": engine.engine,
        "engine_version": engine.version,
        "max_rank": engine.max_rank,
    }
    if deployment is not None:
        settings["canary"], settings["percent"] = canary
        settings["merged_adapter"] = deployment.merged_adapter
    if sagemaker is not None:
        settings |= {
            "adapter_naming": sagemaker.adapters,
            "api": sagemaker.api,
            "container": sagemaker.container,
            "loaded": _loaded(sagemaker),
        }
    # Lock the base model's row while its copies change, so that the published list is complete.
    base_model = BaseModel.objects.select_for_update().get(pk=base_model.pk)
    known = Copy.objects.filter(base_model=base_model, **location).first()
    before = None if known is None else snapshot(known)
    copy, _ = Copy.objects.update_or_create(
        base_model=base_model,
        **location,
        defaults=settings,
        create_defaults={"id": f"copy-{secrets.token_hex(4)}", "deployment": deployment, **settings},
    )
    if token is not None or headers is not None:
        _set_credentials(copy, token, headers)
    publish_locked(base_model)
    audit_record(tenant="", action="copy.register", target=copy, before=before, after=snapshot(copy))
    if before is None and not copy.merged_adapter:
        _emit("deployment.copy.added", base_model)
    return copy


def _set_credentials(copy: Copy, token: str | None, headers: Mapping[str, str] | None) -> None:
    place = copy.credentials_place
    changed = credentials_changed(copy.sealed_credentials, place=place, token=token, headers=headers)
    credentials_check(changed)
    copy.sealed_credentials = credentials_column(changed, place=place)
    copy.save(update_fields=["sealed_credentials"])


@transaction.atomic
def copy_remove(*, copy: Copy, by_deployment: bool = False) -> None:
    """Remove a server from the route table; running streams finish.

    Raises:
        ConflictError: it belongs to a deployment, which alone may remove it (`by_deployment`).
    """
    if copy.deployment_id is not None and not by_deployment:
        raise ConflictError(
            f"{copy.pk} is a copy of deployment {copy.deployment}, which would restore it: remove or "
            f"change the deployment"
        )
    base_model = BaseModel.objects.select_for_update().get(pk=copy.base_model_id)
    if Copy.objects.filter(pk=copy.pk).delete()[0]:
        if copy.deployment_id is not None:
            RemovedCopy.objects.create(
                pk=copy.pk,
                deployment_id=copy.deployment_id,
                endpoint=copy.endpoint,
                component=copy.component,
                adapter_naming=copy.adapter_naming,
            )
        audit_record(tenant="", action="copy.remove", target=copy, before=snapshot(copy))
        if not copy.merged_adapter:
            _emit("deployment.copy.removed", base_model)
    publish_locked(base_model)


def removed_copies_forget(*, now: dt.datetime | None = None) -> int:
    """Delete the rows of copies that were removed longer ago than KEEP_REMOVED; return how many."""
    before = (now or timezone.now()) - KEEP_REMOVED
    return RemovedCopy.objects.filter(removed_at__lt=before).delete()[0]


def _emit(event: str, base_model: BaseModel) -> None:
    """Emit an event to every subscribed tenant.

    The event omits where the copy runs, which concerns only the operator, and copies for one adapter alone.
    """
    copies = Copy.objects.filter(base_model_id=base_model.pk, merged_adapter="").count()
    data = {"base_model": base_model.name, "copies": copies}
    event_emit(tenant=None, type=event, data=data)


def _location_columns(target: SageMakerTarget | None) -> dict[str, str]:
    """Validate a SageMaker copy's location and return its columns; empty for other kinds."""
    if target is None:
        return {"region": "", "endpoint": "", "component": ""}
    if REGION.fullmatch(target.region) is None:
        raise _wrong("region", "a region such as eu-central-1", target.region)
    if _NAME.fullmatch(target.endpoint) is None:
        raise _wrong("endpoint", "1-63 letters, digits and inner hyphens", target.endpoint)
    if target.component and _NAME.fullmatch(target.component) is None:
        raise _wrong("component", "1-63 letters, digits and inner hyphens", target.component)
    if target.adapters not in Copy.AdapterNaming.values:
        raise _wrong("adapters", f"one of {', '.join(Copy.AdapterNaming.values)}", target.adapters)
    if target.api not in Copy.Api.values:
        raise _wrong("api", f"one of {', '.join(Copy.Api.values)}", target.api)
    if target.adapters == Copy.AdapterNaming.COMPONENTS and not target.component:
        text = "adapters components requires the base model's component; without one use reference or name"
        raise InvalidInputError(text, field="sagemaker.adapters")
    if target.container not in Copy.Container.values:
        raise _wrong("container", f"one of {', '.join(Copy.Container.values)}", target.container)
    _check_container(target)
    return {"region": target.region, "endpoint": target.endpoint, "component": target.component}


def _check_container(target: SageMakerTarget) -> None:
    """Refuse an interface on which the container would not read the adapter. Raises InvalidInputError."""
    match Copy.Container(target.container):
        case Copy.Container.TGI | Copy.Container.TRITON | Copy.Container.PYTORCH:
            if target.adapters != Copy.AdapterNaming.NAME:
                raise _wrong("adapters", f"name for a container of form {target.container}", target.adapters)
            if target.api != Copy.Api.INVOCATIONS:
                raise _wrong("api", f"invocations for a container of form {target.container}", target.api)
        case Copy.Container.VLLM:
            if target.adapters == Copy.AdapterNaming.REFERENCE:
                raise _wrong("adapters", "components or name for a container of form vllm", target.adapters)
            unread = target.adapters == Copy.AdapterNaming.NAME and target.api == Copy.Api.INVOCATIONS
            if unread and target.loaded != ():
                wanted = "openai or routes for adapters by name, which vLLM does not read on /invocations"
                raise _wrong("api", wanted, target.api)
        case _ if target.api == Copy.Api.ROUTES:
            raise _wrong("api", "invocations or openai for a container of form lmi", target.api)


def _loaded(target: SageMakerTarget) -> list[str] | None:
    """Return the adapters to store; TGI serves the base model for unknown ones, so none means no adapter."""
    loaded = () if target.loaded is None and target.container == Copy.Container.TGI else target.loaded
    return None if loaded is None else list(loaded)


def _wrong(name: str, wanted: str, given: str) -> InvalidInputError:
    return InvalidInputError(f"sagemaker.{name} must be {wanted}, got {given!r}", field=f"sagemaker.{name}")
