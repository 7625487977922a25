"""Create and remove targets."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from django.db import transaction
from django.db.models import ProtectedError
from django.utils import timezone

from contracts.adapters.reference import SLUG_PATTERN
from contracts.server_credentials import ServerCredentials
from controlplane.deployments.models import Deployment, Target
from controlplane.deployments.models.credentials import credentials_changed, credentials_column
from controlplane.deployments.validation import REGION, base_url, credentials_check
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.platform.audit.services import audit_record
from controlplane.platform.audit.snapshot import locked_snapshot, snapshot

_ROLE: Final = re.compile(r"arn:aws[a-z-]*:iam::[0-9]{12}:role/[\w+=,.@/-]{1,1024}")
_STORE: Final = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9!_.*'()/-]{0,400})?")
_NAMESPACE: Final = re.compile(r"[A-Za-z0-9._/#-][A-Za-z0-9._/#: -]{0,254}")
_HOST: Final = re.compile(r"[A-Za-z0-9.:_-]{1,255}")


@transaction.atomic
def target_create(
    *,
    name: str,
    kind: str,
    region: str = "",
    endpoint_url: str = "",
    role_arn: str = "",
    assume_role_arn: str = "",
    store: str = "",
    host: str = "",
    address: str = "",
    urls: Sequence[str] = (),
    metrics_namespace: str = "",
    openai_path: bool = False,
    token: str = "",
    headers: Mapping[str, str] | None = None,
) -> Target:
    """Create a target without calling it.

    Args:
        openai_path: sagemaker: gateways send chats to the endpoints' OpenAI path, where the image has it.
        token, headers: openai_http: what the servers want with each request; stored sealed.

    Raises:
        InvalidInputError: a value that the kind needs is missing or malformed, or a value is not for this
            kind.
        ConflictError: a target of this name exists.
    """
    if SLUG_PATTERN.fullmatch(name) is None or len(name) > 40:
        raise _wrong("name", "1-40 lower-case letters, digits and inner hyphens", name)
    if kind not in Target.Kind.values:
        raise _wrong("kind", f"one of {', '.join(Target.Kind.values)}", kind)
    target = Target(
        name=name,
        kind=kind,
        region=region,
        endpoint_url=endpoint_url,
        role_arn=role_arn,
        assume_role_arn=assume_role_arn,
        store=store.rstrip("/"),
        host=host,
        address=address,
        urls=list(urls),
        metrics_namespace=metrics_namespace,
        openai_path=openai_path,
    )
    target.sealed_credentials = _sealed(target, ServerCredentials(token, headers or {}))
    _only_its_own(target)
    match Target.Kind(kind):
        case Target.Kind.SAGEMAKER:
            _check_sagemaker(target)
        case Target.Kind.LOCAL:
            target.host = host or socket.gethostname()
            target.address = address or "127.0.0.1"
            for field in ("host", "address"):
                if _HOST.fullmatch(getattr(target, field)) is None:
                    raise _wrong(field, "a host name or address", getattr(target, field))
        case Target.Kind.OPENAI_HTTP:
            if not urls or len(urls) > 64:
                raise InvalidInputError(
                    "urls must have 1 to 64 entries, such as http://vllm:8000", field="urls"
                )
            target.urls = [base_url(url, field="urls") for url in urls]
    if Target.objects.filter(name=name).exists():
        raise ConflictError(f"target {name!r} already exists")
    target.save()
    audit_record(tenant="", action="target.create", target=target, after=snapshot(target))
    return target


@transaction.atomic
def target_update(
    *,
    target: Target,
    metrics_namespace: str | None = None,
    openai_path: bool | None = None,
    token: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Target:
    """Change the given values; None keeps one.

    Args:
        metrics_namespace: CloudWatch namespace to which adapters' metrics are exported; "" ends the export.
        openai_path: as for `target_create`; deployments publish it at their next reconciliation.
        token, headers: as for `target_create`; deployments publish new ones at their next reconciliation.

    Raises:
        InvalidInputError: a value is malformed, or not valid for this kind of target.
    """
    before = locked_snapshot(target)
    target.refresh_from_db()
    if metrics_namespace is not None:
        target.metrics_namespace = metrics_namespace
        _check_namespace(target)
    if openai_path is not None:
        target.openai_path = openai_path
        target.deployments.filter(removed_at=None).update(next_at=timezone.now())
    if token is not None or headers is not None:
        changed = credentials_changed(
            target.sealed_credentials, place=target.credentials_place, token=token, headers=headers
        )
        target.sealed_credentials = _sealed(target, changed)
        target.deployments.filter(removed_at=None).update(next_at=timezone.now())
    _only_its_own(target)
    target.save(update_fields=["metrics_namespace", "openai_path", "sealed_credentials"])
    audit_record(tenant="", action="target.update", target=target, before=before, after=snapshot(target))
    return target


@transaction.atomic
def target_remove(*, target: Target) -> None:
    """Delete a target and the history of its removed deployments.

    Raises:
        ConflictError: it still has deployments, or stores results of optimization jobs.
    """
    row = Target.objects.select_for_update().get(pk=target.pk)
    remaining = row.deployments.filter(removed_at=None).values_list("name", flat=True)
    if names := ", ".join(remaining):
        raise ConflictError(f"the target still has deployments: remove {names} first")
    audit_record(tenant="", action="target.remove", target=row, before=snapshot(row))
    try:
        Deployment.objects.filter(target=row).delete()
        row.delete()
    except ProtectedError as error:
        raise ConflictError(
            "the target's store has results of optimization jobs: remove the jobs first, and wait an hour"
        ) from error


TAKES: Final = {
    Target.Kind.SAGEMAKER: {
        "region",
        "endpoint_url",
        "role_arn",
        "assume_role_arn",
        "store",
        "metrics_namespace",
        "openai_path",
    },
    Target.Kind.LOCAL: {"host", "address"},
    Target.Kind.OPENAI_HTTP: {"urls", "sealed_credentials"},
}
"""Columns that each kind of target takes, besides name and kind."""


def _sealed(target: Target, credentials: ServerCredentials) -> str:
    """Check the credentials and seal them. Raises InvalidInputError."""
    credentials_check(credentials)
    if target.kind != Target.Kind.OPENAI_HTTP and credentials.headers:
        text = f"headers is not valid for targets of kind {target.kind}"
        raise InvalidInputError(text, field="headers")
    return credentials_column(credentials, place=target.credentials_place)


def _only_its_own(target: Target) -> None:
    """Raise InvalidInputError if a field of another kind of target is set."""
    for field in set().union(*TAKES.values()) - TAKES[Target.Kind(target.kind)]:
        if getattr(target, field):
            name = "token" if field == "sealed_credentials" else field
            text = f"{name} is not valid for targets of kind {target.kind}"
            raise InvalidInputError(text, field=name)


def _check_sagemaker(target: Target) -> None:
    if REGION.fullmatch(target.region) is None:
        raise _wrong("region", "a region such as eu-central-1", target.region)
    if _ROLE.fullmatch(target.role_arn) is None:
        raise _wrong(
            "role_arn", "the role that endpoints run as, arn:aws:iam::<account>:role/<name>", target.role_arn
        )
    if target.assume_role_arn and _ROLE.fullmatch(target.assume_role_arn) is None:
        raise _wrong("assume_role_arn", "like arn:aws:iam::<account>:role/<name>", target.assume_role_arn)
    if _STORE.fullmatch(target.store) is None:
        raise _wrong(
            "store", "s3://bucket/prefix, the location of adapter archives for SageMaker", target.store
        )
    _check_namespace(target)
    if target.endpoint_url:
        parts = urlsplit(target.endpoint_url)
        target.endpoint_url = base_url(target.endpoint_url, field="endpoint_url")
        if parts.path.strip("/"):
            raise _wrong("endpoint_url", "a URL without a path", target.endpoint_url)


def _check_namespace(target: Target) -> None:
    name = target.metrics_namespace
    if name and (_NAMESPACE.fullmatch(name) is None or name.startswith("AWS/")):
        raise _wrong("metrics_namespace", "a CloudWatch namespace such as Graftwork, outside of AWS/", name)


def _wrong(field: str, wanted: str, given: str) -> InvalidInputError:
    return InvalidInputError(f"{field} must be {wanted}, got {given!r}", field=field)
