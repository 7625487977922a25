"""`manage.py web_role`: makes the web process's database role, or brings its rights up to date."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from typing import Any
from urllib.parse import unquote, urlsplit

from django.core.management.base import BaseCommand, CommandError
from django.db import connection

from controlplane.platform.row_security.grants import web_role_grant


class Command(BaseCommand):
    help = "Create or update the web process's database role, which owns no tables. Run after each migrate."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--url-from", default="WEB_DATABASE_URL", metavar="VARIABLE")

    def handle(self, *args: Any, **options: Any) -> None:
        if connection.vendor != "postgresql":
            raise CommandError("row policies need PostgreSQL: nothing to do for this database")
        url = urlsplit(os.environ.get(options["url_from"], ""))
        if not url.username or not url.password:
            raise CommandError(
                f"{options['url_from']} must hold the web process's URL: "
                f"postgresql://role:password@host/database"
            )
        web_role_grant(name=unquote(url.username), password=unquote(url.password))
        self.stdout.write(f"{unquote(url.username)} can read and write rows within the scope of its requests")
