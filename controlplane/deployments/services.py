"""Changes of copies."""

from __future__ import annotations

import secrets
from urllib.parse import urlsplit

from django.db import transaction

from controlplane.catalog.models import BaseModel
from controlplane.deployments.models import Copy
from controlplane.errors import InvalidInputError
from controlplane.routes.services import route_set
from gateway.wire import BaseRoute, CopyRoute


@transaction.atomic
def copy_register(*, base_model: BaseModel, kind: str, url: str) -> Copy:
    """Tells the gateways of a server for `base_model`; the same URL again returns the copy it has.

    Raises:
        InvalidInputError: the kind is unknown or the URL is not one.
    """
    if kind not in Copy.Kind.values:
        raise InvalidInputError(f"kind must be one of {', '.join(Copy.Kind.values)}", field="kind")
    url = _base_url(url)
    # The base's row is the lock under which its copies change: the published list is always whole.
    BaseModel.objects.select_for_update().get(pk=base_model.pk)
    copy, _ = Copy.objects.update_or_create(
        base_model=base_model,
        url=url,
        defaults={"kind": kind},
        create_defaults={"id": f"copy-{secrets.token_hex(4)}", "kind": kind},
    )
    _publish(base_model)
    return copy


@transaction.atomic
def copy_remove(*, copy: Copy) -> None:
    """Takes a server out of the route table; running streams end by themselves."""
    base_model = BaseModel.objects.select_for_update().get(pk=copy.base_model_id)
    Copy.objects.filter(pk=copy.pk).delete()
    _publish(base_model)


def _publish(base_model: BaseModel) -> None:
    copies = tuple(CopyRoute(copy.pk, copy.kind, copy.url) for copy in base_model.copies.all())
    entry = BaseRoute(base_model.served_name, base_model.max_model_len, copies)
    route_set(path=f"bases/{base_model.name}", entry=entry)


def _base_url(text: str) -> str:
    parts = urlsplit(text.strip().rstrip("/").removesuffix("/v1"))
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise InvalidInputError(f"url must be like http://host:port, got {text!r}", field="url")
    if parts.username or parts.password:
        raise InvalidInputError("url must carry no credentials: workers take the fleet token", field="url")
    return parts.geturl()
