"""Two tenants with someone in every role: globex owns everything that routes name, acme's people knock."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from django.test import Client, override_settings
from django.utils import timezone

from controlplane.adapters.aliases import alias_move
from controlplane.adapters.models import Adapter, AdapterVersion
from controlplane.artifacts.credentials.services import credential_create
from controlplane.artifacts.uploads.services import upload_create
from controlplane.billing.credit_notes.services import credit_note_issue
from controlplane.billing.ledger.credits import payment_record
from controlplane.billing.models import Invoice, JournalEntry, LedgerHead
from controlplane.billing.parties.services import party_set
from controlplane.billing.services import price_book_create
from controlplane.billing.taxes.services import treatment_set
from controlplane.billing.terms import term_create
from controlplane.canaries.services import rollout_start
from controlplane.catalog.services import base_model_register, variant_create
from controlplane.deployments.copies.services import copy_register
from controlplane.deployments.models import AdapterRule, DeploymentRollout, Scaling
from controlplane.deployments.rollouts.states import state_values
from controlplane.deployments.services import deployment_create
from controlplane.deployments.targets.services import target_create
from controlplane.metering.models import UsageEventRow
from controlplane.metering.partitions import partitions_ensure
from controlplane.metering.prompt_log.models import KeptPrompt
from controlplane.metering.prompt_log.services import prompt_log_set
from controlplane.metering.sources import source_create
from controlplane.monitoring.models import AdapterQuarantine
from controlplane.monitoring.services import alarm_create
from controlplane.operations.models import TenantDeletion
from controlplane.tenants.members.services import invitation_create
from controlplane.tenants.models import Tenant, User
from controlplane.tenants.roles import Role
from controlplane.tenants.services import (
    api_key_create,
    project_create,
    service_account_create,
    tenant_create,
    user_create,
)
from controlplane.tenants.services.staff_tokens import staff_token_create
from controlplane.webhooks.services import endpoint_create, endpoint_test
from gateway.usage.prompt_log import Record, seal
from tests.controlplane.billing.parties import parties_state
from tests.controlplane.conftest import write_checkpoint
from tests.controlplane.optimization_routes import optimization_values

OWN, OTHER = "globex", "acme"
PASSWORD = "long-enough-7"
NOW = dt.datetime(2026, 2, 1, tzinfo=dt.UTC)


@dataclass(frozen=True)
class World:
    """Callers, and the values of routes' parameters.

    Attributes:
        values: what stands for each parameter of a route's path.
        people: a logged-in client for each (tenant, role).
        manage, inference, usage: a key of each tenant with that scope.
        staff, nobody: clients of a staff member of no tenant, and of one who is not logged in.
    """

    values: Mapping[str, str]
    people: Mapping[tuple[str, Role], Client]
    manage: Mapping[str, str]
    inference: Mapping[str, str]
    usage: Mapping[str, str]
    staff: Client
    nobody: Client


def world_make(folder: Path) -> World:
    """Fill the database; the caller rolls it back."""
    base_model = base_model_register(name="tiny-base", source=write_checkpoint(folder / "checkpoint"))
    own, other = (tenant_create(slug=slug, name=slug.title()) for slug in (OWN, OTHER))
    adapter = Adapter.objects.create(tenant=own, name="pirate", base_model=base_model)
    version = AdapterVersion.objects.create(
        adapter=adapter, number=1, status="ready", sha256="ab" * 32, uri="file:///a/", rank=2
    )
    Adapter.objects.create(tenant=own, name="retired", base_model=base_model, deleted_at=timezone.now())
    AdapterVersion.objects.create(adapter=adapter, number=2, status="refused", deleted_at=timezone.now())
    alias_move(adapter=adapter, name="prod", number=version.number)
    AdapterVersion.objects.create(
        adapter=adapter, number=3, status="ready", sha256="cd" * 32, uri="file:///a/", rank=2
    )
    rollout = rollout_start(adapter=adapter, alias="prod", version=3)
    variant_create(base_model=base_model, name="int8", dtype="int8", source="/nowhere")
    book = price_book_create(name="standard")
    term_create(book=book, tenant=own, starts=dt.date(2099, 1, 1))
    payment_record(tenant=own, amount_nano=10**9)
    invoice = Invoice.objects.create(tenant=OWN, month=dt.date(2026, 1, 1), currency="USD", drafted_at=NOW)
    treatment = treatment_set(tenant=own, starts=dt.date(2099, 1, 1), kind="taxed", label="VAT")
    seller, details = (
        party_set(tenant=whose, values={"legal_name": "X", "address": "Y"}, starts=dt.date(2099, 1, 1))
        for whose in ("", OWN)
    )
    parties_state(OWN)
    credit_note = credit_note_issue(invoice=_finalized(), reason="other", amount_nano=10**7)
    credential_create(tenant=own, name="hub", kind="huggingface", secret="hf_secret")
    keys = {
        (tenant.pk, scope): api_key_create(tenant=tenant, name=scope, scopes=[scope])
        for tenant in (own, other)
        for scope in ("manage", "inference", "usage")
    }
    # The real hash is slow on purpose; no test is about it.
    nobody = Client()
    with override_settings(PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"]):
        people = {
            (tenant.pk, role): _client(_user(role, tenant), nobody)
            for tenant in (own, other)
            for role in Role
        }
        operator = user_create(email="s@graft.test", password=PASSWORD, is_staff=True)
        staff = _client(operator, nobody)
    endpoint, _ = endpoint_create(tenant=own, url="https://hooks.example/", events=["adapter.deleted"])
    project = project_create(tenant=own, slug="chat", name="Chat")
    account = service_account_create(project=project, name="ci", role=Role.ENGINEER)
    # An address of its own: worlds that are made at once elsewhere count against the same Redis.
    invitation = invitation_create(tenant=own, email=f"new-{uuid4().hex}@globex.test", role=Role.VIEWER)
    viewer = User.objects.get(email=f"{Role.VIEWER}@{OWN}.test")
    now = timezone.now()
    TenantDeletion.objects.create(tenant=OWN, requested_at=now, purge_after=now + dt.timedelta(days=1))
    target = target_create(name="vllm", kind="openai_http", urls=["http://127.0.0.1:1"])
    target_create(name="unused", kind="local")
    deployment = deployment_create(name="tiny-vllm", target=target, base_model=base_model)
    Scaling.objects.create(deployment=deployment, policy={"target": 4})
    ref = version.ref()
    AdapterRule.objects.create(deployment=deployment, engine_name=ref.name, ref=ref.to_dict(), copies=1)
    turn = DeploymentRollout.objects.create(
        deployment=deployment,
        strategy="rolling",
        before=state_values(deployment),
        policy={},
        after=state_values(deployment) | {"urls": ["http://127.0.0.1:2"]},
        turned_at=timezone.now(),
    )
    fleet = service_account_create(project=project, name="fleet", role=Role.VIEWER)
    source = source_create(tenant=OWN, service_account=fleet.name, tenants=None)
    values = {
        "source": str(source.pk),
        "request_id": _request().request_id,
        "target": "unused",
        "deployment": "tiny-vllm",
        "deployment_rollout": str(turn.pk),
        "engine_name": ref.name,
        "project": project.slug,
        "account": account.name,
        "user_id": str(viewer.pk),
        "invitation_id": str(invitation.pk),
        "endpoint_id": endpoint.pk,
        "delivery_id": str(endpoint_test(endpoint=endpoint).pk),
        "upload_id": upload_create(tenant=own, name="adapter_config.json", size=10).pk,
        "name": "pirate",
        "number": "1",
        "alias": "prod",
        "slug": OWN,
        "rollout": str(rollout.pk),
        "action": "pause",
        "variant": "int8",
        "public_id": keys[OWN, "inference"][0].pk,
        "seller": str(seller.pk),
        "details": str(details.pk),
        "entry": str(JournalEntry.objects.filter(tenant=OWN).earliest("pk").pk),
        "treatment": str(treatment.pk),
        "credit_note": str(credit_note.pk),
        "invoice": str(invoice.pk),
        "form": "csv",
        "term": str(book.terms.get(tenant="").pk),
        **_alarms(own),
        "copy_id": copy_register(base_model=base_model, kind="worker", url="http://127.0.0.1:1").pk,
        **optimization_values(base_model),
        "token_id": _staff_token(operator),
    }
    for tenant in (own, other):
        prompt_log_set(tenant=tenant, days=7)
    KeptPrompt.objects.create(
        tenant=own, request_id=values["request_id"], at=now, encrypted=_sealed(own, values["request_id"])
    )
    manage, inference, usage = (
        {tenant: keys[tenant, scope][1] for tenant in (OWN, OTHER)}
        for scope in ("manage", "inference", "usage")
    )
    return World(values, people, manage, inference, usage, staff, nobody)


def _sealed(tenant: Tenant, request_id: str) -> bytes:
    """A prompt as a gateway keeps it."""
    body = json.dumps({"messages": [{"role": "user", "content": "Who goes there?"}]}).encode()
    answer = b'data: {"choices": [{"delta": {"content": "A pirate."}}]}\n\ndata: [DONE]\n\n'
    path = "/v1/chat/completions"
    return seal(Record(tenant.prompt_key, tenant.pk, request_id, path, body, False, 0, [answer]))


def _alarms(own: Tenant) -> dict[str, str]:
    """Create the tenant's alarm, with a change of its state, and the operator's."""
    rule: dict[str, Any] = {
        "name": "errors",
        "metric": "error_rate",
        "comparison": "GreaterThanThreshold",
        "threshold": 5.0,
        "period_seconds": 300,
        "evaluation_periods": 3,
        "datapoints_to_alarm": 2,
    }
    alarm = alarm_create(tenant=own, adapter="pirate", **rule)
    of_operator = alarm_create(tenant=None, adapter=f"{OWN}/pirate", **rule)
    alarm.changes.create(
        before="OK", after="ALARM", reason="2 of the last 3 periods are > 5 %.", values=[9.0]
    )
    return {
        "alarm": str(alarm.pk),
        "alarm_id": str(alarm.pk),
        "operator_alarm_id": str(of_operator.pk),
        "quarantine_id": str(_quarantine().pk),
    }


def _quarantine() -> AdapterQuarantine:
    """Create a quarantine in force of the tenant's adapter."""
    return AdapterQuarantine.objects.create(
        engine_name=f"t_{OWN}.a_pirate.v1.{'ab' * 6}",
        tenant_slug=OWN,
        adapter="pirate",
        version=1,
        base_model="tiny-base",
        copies=["copy-1", "copy-2"],
        times=1,
        held_at=timezone.now(),
        until=timezone.now() + dt.timedelta(hours=1),
    )


def _request() -> UsageEventRow:
    """Return a request that globex made yesterday, of its default project."""
    yesterday = timezone.now() - dt.timedelta(days=1)
    partitions_ensure([yesterday.date()])
    return UsageEventRow.objects.create(
        event_id=UUID(int=int(yesterday.timestamp() * 1000) << 80 | 7 << 76 | 2 << 62),
        day=yesterday.date(),
        hour=0,
        tenant=OWN,
        project="default",
        key_id="k",
        request_id="req-globex",
        attempt=0,
        requested_model="pirate",
        alias="",
        arm="",
        adapter="",
        base_model="tiny-base",
        backend="worker",
        endpoint="c",
        status="ok",
        error_code="",
        prompt_tokens=1,
        cached_tokens=0,
        completion_tokens=1,
        estimated=False,
        ttft_ms=1.0,
        duration_ms=2.0,
        started_at=int(yesterday.timestamp() * 1000),
        gateway_id="g",
    )


def _finalized() -> Invoice:
    made = Invoice.objects.create(
        tenant=OWN,
        month=dt.date(2025, 12, 1),
        currency="USD",
        drafted_at=NOW,
        lines_nano=10**9,
        due_nano=10**9,
    )
    made.status, made.number, made.finalized_at = Invoice.Status.FINALIZED, 1, NOW
    made.save()
    LedgerHead.objects.filter(tenant=OWN).update(invoices=1, closed_through=made.month)
    return made


def _user(role: Role, tenant: Tenant) -> User:
    return user_create(email=f"{role}@{tenant.pk}.test", password=PASSWORD, tenant=tenant, role=role)


def _staff_token(user: User) -> str:
    ends = timezone.now() + dt.timedelta(days=9)
    return staff_token_create(user=user, name="script", scope="read", expires_at=ends)[0].pk


def _client(user: User, other: Client) -> Client:
    client = Client()
    # Each handler of its own would read every static file's place anew.
    client.handler = other.handler
    client.force_login(user)
    return client


def everyone(world: World) -> Iterator[tuple[str, Role, Client]]:
    """Each person: their tenant, their role, their browser."""
    for (tenant, role), client in world.people.items():
        yield tenant, role, client
