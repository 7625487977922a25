"""`manage.py verify`: check the integrity of a database, such as a restored backup."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from contracts.adapters.reference import ADAPTER_FILES
from controlplane.adapters.models import AdapterVersion
from controlplane.artifacts.credentials.models import SourceCredential
from controlplane.artifacts.store import artifact_store
from controlplane.catalog.models import BaseModel
from controlplane.deployments.models import Copy, Target
from controlplane.errors import UnavailableError, UnsealError
from controlplane.metering.prompt_log.models import PromptLog
from controlplane.platform.audit.selectors import chain_tenants, chain_verify
from controlplane.platform.sealing import unseal
from controlplane.webhooks.models import WebhookEndpoint


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
    store = artifact_store()
    digests = AdapterVersion.objects.filter(status=AdapterVersion.Status.READY).values_list(
        "sha256", flat=True
    )
    try:
        return [
            f"missing in the artifact store: adapters/{digest}/{name}"
            for digest in digests.order_by("sha256").distinct()
            for name in ADAPTER_FILES
            if store.size(f"adapters/{digest}/{name}") is None
        ]
    except UnavailableError as error:
        return [str(error)]


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
