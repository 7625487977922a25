"""`manage.py verify`: whether a database, such as a restored one, is whole."""

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
from controlplane.errors import UnavailableError, UnsealError
from controlplane.metering.prompt_log.models import PromptLog
from controlplane.platform.audit.selectors import chain_tenants, chain_verify
from controlplane.platform.sealing import unseal
from controlplane.webhooks.models import WebhookEndpoint


class Command(BaseCommand):
    """Changes nothing; ends with status 1 where something is wrong."""

    help = "Check migrations, constraints, audit logs, adapters' files and sealed secrets."

    def handle(self, *args: Any, **options: Any) -> None:
        file = connection.settings_dict["NAME"]
        # SQLite makes a file that is not there, and an empty one is no word on a restored one.
        if connection.vendor == "sqlite" and not Path(file).is_file():
            raise CommandError(f"there is no database {file}: see GRAFTWORK_DATABASE_URL")
        executor = MigrationExecutor(connection)
        if executor.migration_plan(executor.loader.graph.leaf_nodes()):
            raise CommandError("migrations are missing: run manage.py migrate")
        call_command("check", database=["default"], stdout=self.stdout)
        connection.check_constraints()
        faults = [report.fault for name in chain_tenants() if (report := chain_verify(tenant=name)).fault]
        faults += _missing_files()
        faults += _closed_secrets()
        for fault in faults:
            self.stderr.write(fault)
        if faults:
            raise CommandError(f"{len(faults)} faults")
        self.stdout.write("whole: schema, constraints, audit logs, adapters' files, secrets")


def _missing_files() -> list[str]:
    store = artifact_store()
    digests = AdapterVersion.objects.filter(status=AdapterVersion.Status.READY).values_list(
        "sha256", flat=True
    )
    try:
        return [
            f"the store lacks adapters/{digest}/{name}"
            for digest in digests.order_by("sha256").distinct()
            for name in ADAPTER_FILES
            if store.size(f"adapters/{digest}/{name}") is None
        ]
    except UnavailableError as error:
        return [str(error)]


def _closed_secrets() -> list[str]:
    sealed = [(row.secret, row.sealing_place) for row in WebhookEndpoint.objects.all()]
    sealed += [(row.sealed_secret, row.place) for row in SourceCredential.objects.all()]
    sealed += [(row.sealed_private_key, row.place) for row in PromptLog.objects.all()]
    faults = []
    for secret, place in sealed:
        try:
            unseal(secret, place=place)
        except UnsealError as error:
            faults.append(str(error))
    return faults
