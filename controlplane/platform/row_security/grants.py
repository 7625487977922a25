"""The database role of the web process: it owns no table, so row policies hold for it."""

from __future__ import annotations

from django.db import connection
from psycopg import sql


def web_role_grant(*, name: str, password: str | None = None) -> None:
    """Makes the role if need be, lets it read and write rows of today's tables and those to come; changes
    nothing when it is done already. Run as the tables' owner, who must be allowed to make roles.

    Args:
        password: it may log in with this one; None for a role that is only switched to.
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
    """Whether row policies hold for the role that this process uses."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT NOT (role.rolsuper OR role.rolbypassrls"
            " OR pg_has_role(role.oid, owned.relowner, 'MEMBER'))"
            " FROM pg_roles AS role, pg_class AS owned"
            " WHERE role.rolname = current_user AND owned.oid = 'tenants_tenant'::regclass"
        )
        row = cursor.fetchone()
    return row is not None and bool(row[0])
