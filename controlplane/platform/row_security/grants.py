"""The web process's database role: it owns no table, so row policies apply to it."""

from __future__ import annotations

from django.db import connection
from psycopg import sql


def web_role_grant(*, name: str, password: str | None = None) -> None:
    """Create the role if needed and grant it read and write access to all present and future tables.

    Idempotent. Run it as the tables' owner, which needs the right to create roles.

    Args:
        password: the role's login password; None for a role without login, for SET ROLE.
    """
    role = sql.Identifier(name)
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [name])
        verb = sql.SQL("ALTER" if cursor.fetchone() else "CREATE")
        login = sql.SQL("LOGIN PASSWORD {}").format(sql.Literal(password)) if password else sql.SQL("NOLOGIN")
        attributes = sql.SQL("NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE")
        for statement in (
            sql.SQL("{} ROLE {} {} {}").format(verb, role, login, attributes),
            sql.SQL("GRANT USAGE ON SCHEMA public TO {}").format(role),
            sql.SQL("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {}").format(role),
            sql.SQL("GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA public TO {}").format(role),
            sql.SQL(
                "ALTER DEFAULT PRIVILEGES IN SCHEMA public"
                " GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {}"
            ).format(role),
            sql.SQL(
                "ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT USAGE, SELECT ON SEQUENCES TO {}"
            ).format(role),
        ):
            cursor.execute(statement.as_string(cursor.connection))


def policies_hold() -> bool:
    """Return True if row policies apply to the database role of this process."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT NOT (role.rolsuper OR role.rolbypassrls"
            " OR pg_has_role(role.oid, owned.relowner, 'MEMBER'))"
            " FROM pg_roles AS role, pg_class AS owned"
            " WHERE role.rolname = current_user AND owned.oid = 'tenants_tenant'::regclass"
        )
        row = cursor.fetchone()
    return row is not None and bool(row[0])
