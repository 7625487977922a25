"""Who calls, and what the model name means: pure look-ups in one immutable route table."""

from __future__ import annotations

import hashlib
import hmac
import random
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gateway.errors import InvalidApiKey, ModelNotFound, UpstreamUnreachable
from gateway.wire import KEY_PREFIX, AdapterRoute, BaseRoute, CopyRoute, KeyRoute, RouteTable
from worker_engine.protocol import AdapterRef

_VERSION: Final = re.compile(r"v([1-9][0-9]{0,8})")
_NOBODY: Final = KeyRoute(tenant="", secret_sha256="0" * 64)
_LISTED: Final = 50
"""At most so many names stand in a `model_not_found` message."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The API key behind a request."""

    key_id: str
    tenant: str
    project: str


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a model name means at this moment.

    Attributes:
        base: name of the base model; `route` its entry.
        adapter: the adapter version to apply, None for the base alone.
        copies: every copy that can serve it, in the order to try them.
        alias: alias that the client wrote, or "".
        arm: which side of a split the request fell on; "" where there is no split.
    """

    base: str
    route: BaseRoute
    adapter: AdapterRef | None
    copies: tuple[CopyRoute, ...]
    alias: str = ""
    arm: str = ""

    @property
    def engine_name(self) -> str:
        """Engine name of the adapter, "" for the base alone."""
        return "" if self.adapter is None else self.adapter.name


def authenticate(table: RouteTable, bearer: str) -> Caller:
    """The caller whose API key `bearer` is.

    The secret is compared as a digest in constant time, and an unknown public id costs as much as a
    wrong secret.

    Raises:
        InvalidApiKey: unknown, wrong or expired: the message does not say which.
    """
    prefix, _, rest = bearer.partition("_")
    key_id, _, secret = rest.partition("_")
    key = table.keys.get(key_id, _NOBODY)
    digest = hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()
    right = hmac.compare_digest(digest, key.secret_sha256)
    expired = key.expires_at is not None and key.expires_at <= time.time()
    if not right or expired or key is _NOBODY or prefix != KEY_PREFIX or key.tenant not in table.tenants:
        raise InvalidApiKey(
            "Incorrect, revoked or expired API key. Send `Authorization: Bearer gw_...` with a key "
            "of your tenant; keys are made in the web UI under Keys."
        )
    return Caller(key_id, key.tenant, key.project)


def resolve(table: RouteTable, tenant: str, model: str) -> Resolution:
    """What `model` means to `tenant`: `<base>`, `<adapter>`, `<adapter>@<alias>` or `<adapter>@v<n>`.

    Raises:
        ModelNotFound: unknown, or another tenant's: nothing tells the two apart.
        UpstreamUnreachable: the base model has no copy on compute.
    """
    name, at, tag = model.partition("@")
    adapter = table.adapters.get(tenant, {}).get(name)
    if adapter is not None:
        number = _version(adapter, tag) if at else adapter.default
        reference = None if number is None else adapter.versions.get(number)
        if number is None or reference is None:
            raise _not_found(table, tenant, model)
        alias = tag if at and tag in adapter.aliases else ""
        base = table.bases.get(adapter.base)
        if base is None:
            raise _no_copy(adapter.base)
        return Resolution(adapter.base, base, reference, _order(base, adapter.base, reference.name), alias)
    base = table.bases.get(model)
    if base is None or not _permitted(table, tenant, model):
        raise _not_found(table, tenant, model)
    return Resolution(model, base, None, _order(base, model, ""))


def callable_models(table: RouteTable, tenant: str) -> Iterator[tuple[str, str]]:
    """Every (model name, name of its base) that `tenant` may call: bases, adapters and their aliases."""
    for name in sorted(table.bases):
        if _permitted(table, tenant, name):
            yield name, name
    for name, adapter in sorted(table.adapters.get(tenant, {}).items()):
        if adapter.default in adapter.versions:
            yield name, adapter.base
        for alias, number in sorted(adapter.aliases.items()):
            if number in adapter.versions:
                yield f"{name}@{alias}", adapter.base


def _permitted(table: RouteTable, tenant: str, base: str) -> bool:
    bases = table.tenants[tenant].bases
    return bases is None or base in bases


def _version(adapter: AdapterRoute, tag: str) -> int | None:
    number = adapter.aliases.get(tag)
    if number is None and (match := _VERSION.fullmatch(tag)):
        return int(match[1])
    return number


def _order(base: BaseRoute, name: str, adapter: str) -> tuple[CopyRoute, ...]:
    """An adapter's requests go to one copy by rendezvous hashing, so that few copies hold it; the
    others follow for when that one is unreachable. The base alone is on every copy: any order."""
    copies = base.copies
    if not copies:
        raise _no_copy(name)
    if len(copies) == 1:
        return copies
    if not adapter:
        return tuple(random.sample(copies, len(copies)))
    return tuple(sorted(copies, key=lambda copy: hashlib.blake2b(f"{adapter}\0{copy.id}".encode()).digest()))


def _no_copy(base: str) -> UpstreamUnreachable:
    return UpstreamUnreachable(f"The base model {base!r} is not deployed at this moment; retry later.")


def _not_found(table: RouteTable, tenant: str, model: str) -> ModelNotFound:
    names = [name for name, _ in callable_models(table, tenant)]
    listed = ", ".join(names[:_LISTED]) + (
        f" and {len(names) - _LISTED} more (see GET /v1/models)" if len(names) > _LISTED else ""
    )
    return ModelNotFound(
        f"The model {model[:200]!r} does not exist or you do not have access to it. "
        f"This key may call: {listed or 'no model yet'}.",
        param="model",
    )
