"""`manage.py verify`: check the integrity of a database, such as a restored backup."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Final

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from contracts.adapters.reference import ADAPTER_FILES, POOLING_FILES, adapter_digest
from contracts.capabilities.traits import Trait
from controlplane.adapters.models import AdapterVersion
from controlplane.artifacts.credentials.models import SourceCredential
from controlplane.artifacts.store import artifact_store
from controlplane.artifacts.store.base import ArtifactStore
from controlplane.catalog.models import BaseModel
from controlplane.deployments.models import Copy, Target
from controlplane.errors import UnavailableError, UnsealError
from controlplane.metering.prompt_log.models import PromptLog
from controlplane.platform.audit.selectors import chain_tenants, chain_verify
from controlplane.platform.sealing import unseal
from controlplane.webhooks.models import WebhookEndpoint

_POOLING: Final = {Trait.OWN_POOLING, Trait.OTHER_POOLING}
_CHUNK: Final = 4 << 20


class Command(BaseCommand):
    """Changes nothing; exits with status 1 if a check fails."""

    help = "Check migrations, constraints, audit logs, adapter files and sealed secrets."

    def handle(self, *args: Any, **options: Any) -> None:
        file = connection.settings_dict["NAME"]
        # SQLite creates a missing file, and an empty database would pass all checks.
        if connection.vendor == "sqlite" and not Path(file).is_file():
            raise CommandError(f"The database {file} does not exist: check GRAFTWORK_DATABASE_URL.")
        executor = MigrationExecutor(connection)
        if executor.migration_plan(executor.loader.graph.leaf_nodes()):
            raise CommandError("Some migrations are not applied: run manage.py migrate.")
        call_command("check", database=["default"], stdout=self.stdout)
        connection.check_constraints()
        faults = [report.fault for name in chain_tenants() if (report := chain_verify(tenant=name)).fault]
        faults += _missing_files()
        faults += _closed_secrets()
        for fault in faults:
            self.stderr.write(fault)
        if faults:
            raise CommandError(f"The database has {len(faults)} faults.")
        self.stdout.write("All checks passed: schema, constraints, audit logs, adapter files and secrets.")


def _missing_files() -> list[str]:
    store, ready = artifact_store(), AdapterVersion.objects.filter(status=AdapterVersion.Status.READY)
    versions = dict(ready.order_by("sha256").values_list("sha256", "traits"))
    try:
        faults = [
            f"missing in the artifact store: adapters/{digest}/{name}"
            for digest in versions
            for name in ADAPTER_FILES
            if store.size(f"adapters/{digest}/{name}") is None
        ]
        # Only the digest tells which pooling files an adapter has.
        pooled = [digest for digest, traits in versions.items() if _POOLING & set(traits)]
        if not faults:
            faults = [
                f"missing or changed in the artifact store: files of adapters/{digest}"
                for digest in pooled
                if _stored_digest(store, digest) != digest
            ]
        return faults
    except UnavailableError as error:
        return [str(error)]


def _stored_digest(store: ArtifactStore, digest: str) -> str:
    """Return the digest of the files that the store has of an adapter."""
    found: dict[str, str] = {}
    for name in (*ADAPTER_FILES, *POOLING_FILES):
        if store.size(key := f"adapters/{digest}/{name}") is None:
            continue
        sha256 = hashlib.sha256()
        with store.open(key) as stream:
            while data := stream.read(_CHUNK):
                sha256.update(data)
        found[name] = sha256.hexdigest()
    return adapter_digest(found)


def _closed_secrets() -> list[str]:
    sealed = [(row.secret, row.sealing_place) for row in WebhookEndpoint.objects.all()]
    sealed += [(row.sealed_secret, row.place) for row in SourceCredential.objects.all()]
    gated = BaseModel.objects.exclude(sealed_hub_token="")
    sealed += [(row.sealed_hub_token, row.hub_token_place) for row in gated]
    sealed += [(row.sealed_private_key, row.place) for row in PromptLog.objects.all()]
    targets = Target.objects.exclude(sealed_credentials="")
    sealed += [(target.sealed_credentials, target.credentials_place) for target in targets]
    copies = Copy.objects.exclude(sealed_credentials="")
    sealed += [(copy.sealed_credentials, copy.credentials_place) for copy in copies]
    faults = []
    for secret, place in sealed:
        try:
            unseal(secret, place=place)
        except UnsealError as error:
            faults.append(str(error))
    return faults
