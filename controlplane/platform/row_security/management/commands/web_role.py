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
    help = "Makes the role that the web process logs in as, which owns no table. Run it after each migrate."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--url-from", default="WEB_DATABASE_URL", metavar="VARIABLE")

    def handle(self, *args: Any, **options: Any) -> None:
        if connection.vendor != "postgresql":
            raise CommandError("only PostgreSQL has row policies: nothing to do for this database")
        url = urlsplit(os.environ.get(options["url_from"], ""))
        if not url.username or not url.password:
            raise CommandError(
                f"{options['url_from']} must hold the web process's URL: postgresql://role:password@host/database"
            )
        web_role_grant(name=unquote(url.username), password=unquote(url.password))
        self.stdout.write(f"{unquote(url.username)} may read and write rows, within its requests' scope")
