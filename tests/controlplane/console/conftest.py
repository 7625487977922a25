"""Two tenants with adapters, keys and usage, as the pages show them; a browser where there is one."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from django.test import Client
from pytest_django import Settings

from contracts.adapters.reference import engine_name
from controlplane.adapters.models import Adapter, AdapterVersion
from controlplane.billing.services import price_book_create, price_set
from controlplane.catalog.models import BaseModel
from controlplane.catalog.services import base_model_register
from controlplane.metering.models import UsageRollup
from controlplane.platform.environment import Environment
from controlplane.tenants.models import ApiKey, Tenant, User
from controlplane.tenants.services import api_key_create, tenant_create, user_create
from tests.controlplane.conftest import HIDDEN, adapter_files, adapter_tensors, bf16, write_checkpoint
from tests.controlplane.console.oidc import oidc_provider

PASSWORD = "correct-horse-battery"
PEOPLE: tuple[dict[str, object], ...] = (
    {"sub": "known", "email": "dev@acme.test", "email_verified": True},
    {"sub": "new", "email": "new@acme.test", "email_verified": True},
    {"sub": "sly", "email": "dev@acme.test", "email_verified": False},
)
"""Whom the identity provider knows."""
HOSTILE = "<script>alert(1)</script>\"'>\u202eright-to-left 🦜 " + "x" * 120


@dataclass(frozen=True)
class Team:
    """A tenant with one member and, from `populate`, what it owns."""

    tenant: Tenant
    user: User
    key: ApiKey


def make_team(slug: str, name: str) -> Team:
    tenant = tenant_create(slug=slug, name=name)
    user = user_create(email=f"dev@{slug}.example", password=PASSWORD, tenant=tenant)
    key, _ = api_key_create(tenant=tenant, name=f"{slug} backend", scopes=["inference"], created_by=user)
    return Team(tenant, user, key)


def make_adapter_files(folder: Path, *, fits: bool = True) -> list[Path]:
    """The two files of an adapter of the small base model, or of one with another width."""
    tensors = adapter_tensors()
    if not fits:
        tensors["base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"] = bf16(HIDDEN * 2, 2)
    folder.mkdir(parents=True)
    for name, content in adapter_files(tensors=tensors).items():
        (folder / name).write_bytes(content)
    return sorted(folder.iterdir())


def make_adapter(team: Team, base: BaseModel, name: str, status: str = "ready", reason: str = "") -> Adapter:
    """An adapter row with one version in `status`."""
    adapter = Adapter.objects.create(tenant=team.tenant, name=name, base_model=base, created_by=team.user)
    is_ready = status == "ready"
    AdapterVersion.objects.create(
        adapter=adapter,
        number=1,
        status=status,
        reason=reason,
        steps=[
            {"name": "files", "title": "Files received", "status": "done", "detail": "two files, 3.7 MB"},
            {
                "name": "tensors",
                "title": "Tensors",
                "status": "failed" if reason else "done",
                "detail": reason,
            },
            {"name": "publish", "title": "Stored and routed", "status": "waiting", "detail": ""},
        ],
        sha256="ab" * 32 if is_ready else "",
        uri="file:///nowhere/" if is_ready else "",
        rank=16 if is_ready else None,
        size_bytes=3_700_000 if is_ready else None,
        created_by=team.user,
    )
    return adapter


def use(team: Team, base: BaseModel, adapter: str, *, days: int = 20) -> None:
    """Writes `days` days of rollups up to today."""
    slug = team.tenant.pk
    engine = engine_name(tenant=slug, adapter=adapter, version=1, sha256="ab" * 32) if adapter else ""
    today = dt.datetime.now(dt.UTC).date()
    for ago in range(days):
        scale = 40 + (ago * 37) % 90
        UsageRollup.objects.create(
            day=today - dt.timedelta(days=ago),
            tenant=slug,
            project="default",
            key_id=team.key.pk,
            adapter=engine,
            alias="",
            base_model=base.name,
            backend="worker",
            status="ok",
            requests=scale,
            prompt_tokens=scale * 210,
            cached_tokens=scale * 60,
            completion_tokens=scale * 130,
        )


@pytest.fixture
def base(db: None, tmp_path: Path) -> BaseModel:
    return base_model_register(name="tiny", source=write_checkpoint(tmp_path / "checkpoint"))


@pytest.fixture
def acme(base: BaseModel) -> Team:
    team = make_team("acme", "Acme Robotics")
    make_adapter(team, base, "support-bot")
    refusal = "layers.0.self_attn.q_proj.lora_B has shape [32, 4], expected [16, 4]"
    make_adapter(team, base, "tone-of-voice", "refused", refusal)
    use(team, base, "support-bot")
    use(team, base, "", days=6)
    return team


@pytest.fixture
def globex(base: BaseModel) -> Team:
    team = make_team("globex", "Globex")
    make_adapter(team, base, "globex-secret")
    return team


@pytest.fixture
def priced(base: BaseModel) -> None:
    book = price_book_create(name="list")
    day = dt.datetime.now(dt.UTC).date() - dt.timedelta(days=400)
    price_set(
        book=book,
        base_model="tiny",
        effective_from=day,
        input_nano=150,
        cached_input_nano=75,
        output_nano=600,
    )


@pytest.fixture
def user(tenant: Tenant) -> User:
    return user_create(email="dev@acme.test", password=PASSWORD, tenant=tenant)


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with oidc_provider(tmp_path_factory.mktemp("oidc"), *PEOPLE) as url:
        yield url


@pytest.fixture
def sso(issuer: str, settings: Settings) -> Client:
    """A browser of a deployment with single sign-on."""
    env = {
        "OIDC_ISSUER": issuer,
        "OIDC_CLIENT_ID": "graftwork",
        "OIDC_CLIENT_SECRET": "s",
        "OIDC_NAME": "Okta",
    }
    apps = Environment.from_env({f"GRAFTWORK_{name}": value for name, value in env.items()}).oidc_apps()
    settings.SOCIALACCOUNT_PROVIDERS = {"openid_connect": {"OAUTH_PKCE_ENABLED": True, "APPS": apps}}
    return Client()
