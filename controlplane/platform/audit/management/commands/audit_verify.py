"""`manage.py audit_verify`: verifies the digests of every audit log."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.platform.audit.selectors import chain_get, chain_tenants, chain_verify


class Command(BaseCommand):
    """Exits with status 1 if a log fails verification."""

    help = "Verify the digests of the audit logs, and print each log's newest number and digest."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "tenant", nargs="*", help="tenant IDs; all logs by default ('' is the platform's own)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        faults = 0
        for tenant in options["tenant"] or chain_tenants():
            report = chain_verify(tenant=tenant)
            chain, name = chain_get(tenant=tenant), tenant or "(platform)"
            if report.fault:
                faults += 1
                self.stderr.write(f"{name}: {report.fault}")
            else:
                self.stdout.write(f"{name}: {report.records} records, newest {chain.number} {chain.sha256}")
        if faults:
            raise CommandError(f"{faults} audit logs failed verification")
