"""`manage.py staff_token`: creates a personal access token for a staff member, at the server."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from controlplane.errors import ConflictError, ForbiddenError, InvalidInputError
from controlplane.platform.audit.origin import acting, operator
from controlplane.tenants.models import StaffToken, User
from controlplane.tenants.services.staff_tokens import staff_token_create


class Command(BaseCommand):
    """Prints the token, which is not stored."""

    help = "Create a token with which a staff member's scripts call the REST API."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("email", help="of the staff member as whom the token acts")
        parser.add_argument("--name", required=True, help="what uses the token")
        parser.add_argument("--scope", choices=StaffToken.Scope.values, default=StaffToken.Scope.READ.value)
        parser.add_argument("--days", type=int, default=90, help="until it expires; 366 at most")
        parser.add_argument("--by", required=True, help="name of the operator, for the audit record")

    def handle(self, *args: Any, **options: Any) -> None:
        user = User.objects.filter(email=options["email"]).first()
        if user is None:
            raise CommandError(f"there is no user {options['email']}")
        try:
            with acting(operator(options["by"])):
                _, text = staff_token_create(
                    user=user,
                    name=options["name"],
                    scope=options["scope"],
                    expires_at=timezone.now() + dt.timedelta(days=options["days"]),
                )
        except (InvalidInputError, ForbiddenError, ConflictError, OverflowError) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(text)
