"""Seeds the control plane's database for the demo, in its own process, since it loads Django.

It is idempotent, and follows the credentials file: migrations, tenants, users, keys, the base model with its
copy, a price book. Adapters are registered later, by the REST API.
"""

from __future__ import annotations

import argparse
import datetime as dt
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Final

import django

django.setup()

from django.core.management import call_command  # noqa: E402
from django.utils import timezone  # noqa: E402

from controlplane.billing.models import PriceBook  # noqa: E402
from controlplane.billing.services import price_book_create, price_set  # noqa: E402
from controlplane.catalog.models import BaseModel  # noqa: E402
from controlplane.catalog.services import base_model_register  # noqa: E402
from controlplane.deployments.copies.services import copy_register, copy_remove  # noqa: E402
from controlplane.tenants.models import ApiKey, Tenant, User  # noqa: E402
from controlplane.tenants.selectors import api_key_verify  # noqa: E402
from controlplane.tenants.services import api_key_create, tenant_create, user_create  # noqa: E402
from demo.credentials import OPERATOR, TENANTS, Credentials  # noqa: E402
from demo.sample.clock import as_of, history_start  # noqa: E402

_PRICE_BOOK: Final = "Demo prices"
_PRICED_FROM: Final = dt.date(2026, 1, 1)


def tenants_seed(credentials: Credentials) -> Credentials:
    """Create tenants, users and the operator; return `credentials` with a valid key per tenant."""
    keys = dict(credentials.api_keys)
    for plan in TENANTS:
        tenant = Tenant.objects.filter(pk=plan.slug).first() or tenant_create(slug=plan.slug, name=plan.name)
        user = _user(plan.login, credentials.passwords[plan.login], tenant=tenant)
        if (key := api_key_verify(text=keys.get(plan.slug, ""))) is None or key.tenant != tenant:
            scopes = [ApiKey.Scope.INFERENCE, ApiKey.Scope.MANAGE]
            _, keys[plan.slug] = api_key_create(tenant=tenant, name="demo", scopes=scopes, created_by=user)
    _user(OPERATOR, credentials.passwords[OPERATOR], is_staff=True)
    return replace(credentials, api_keys=keys)


def base_model_seed(*, name: str, source: Path, worker_url: str) -> BaseModel:
    """Register the base model with the demo's worker; copies of deployments and other backends stay.

    Raises:
        SystemExit: the database has the name with another folder.
    """
    base_model = BaseModel.objects.filter(name=name).first() or base_model_register(name=name, source=source)
    if base_model.source != str(source):
        sys.exit(
            f"{name} is registered from {base_model.source}, not from {source}: rename the folder, or start "
            "afresh with an empty var/demo"
        )
    # Remove the worker of a start with other ports.
    for copy in base_model.copies.filter(kind="worker", deployment=None).exclude(url=worker_url):
        copy_remove(copy=copy)
    if not base_model.copies.filter(url=worker_url).exists():
        copy_register(base_model=base_model, kind="worker", url=worker_url)
    return base_model


def price_book_seed(base_model: BaseModel) -> None:
    """Create the prices: $0.10 a million prompt tokens, $0.025 cached, $0.40 generated."""
    book = PriceBook.objects.filter(name=_PRICE_BOOK).first() or price_book_create(name=_PRICE_BOOK)
    if not book.prices.filter(base_model=base_model.name).exists():
        price_set(
            book=book,
            base_model=base_model.name,
            effective_from=_PRICED_FROM,
            input_nano=100,
            cached_input_nano=25,
            output_nano=400,
        )


def _user(login: str, password: str, *, tenant: Tenant | None = None, is_staff: bool = False) -> User:
    user = User.objects.filter(email=login).first()
    if user is None:
        return user_create(email=login, password=password, tenant=tenant, is_staff=is_staff)
    if not user.check_password(password):
        user.set_password(password)
        user.save(update_fields=["password"])
    return user


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `python -m demo.seed`; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m demo.seed", description="Seeds the demo's database.")
    parser.add_argument("--credentials", type=Path, required=True)
    parser.add_argument("--base-model", required=True)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--worker-url", required=True)
    parser.add_argument("--sample", action="store_true", help="create tenants as of the sample history")
    options = parser.parse_args(arguments)
    call_command("migrate", verbosity=1, interactive=False)
    credentials = Credentials.load(options.credentials)
    with as_of(history_start(timezone.now())) if options.sample else nullcontext():
        seeded = tenants_seed(credentials)
    if seeded != credentials:
        seeded.save(options.credentials)
    price_book_seed(
        base_model_seed(name=options.base_model, source=options.source, worker_url=options.worker_url)
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
