"""Triggers that protect the ledger and finalized invoices from changes, on both databases.

They bind every role but the tables' owner, who can drop them by a schema change. The app's initial migration
creates them from this module.
"""

from __future__ import annotations

from typing import Final

from django.db.backends.base.base import BaseDatabaseWrapper

from controlplane.billing.ledger import credit_note_rules as notes

BOOKS: Final = ("billing_journalentry", "billing_usageposting", "billing_creditgrant", notes.NOTE, notes.LINE)
"""Tables whose rows are insert-only."""
_ENTRY: Final = "billing_journalentry"
_INVOICE: Final = "billing_invoice"
_LINE: Final = "billing_invoiceline"
_HEAD: Final = "billing_ledgerhead"
_PARTLY_PROTECTED: Final = (_INVOICE, _LINE, _HEAD)
"""Tables where some rows, or some changes, are refused. An invoice's PDF can be rendered again from them."""
TABLES: Final = (*BOOKS, *_PARTLY_PROTECTED)

_UNDOES: Final = f"""
    SELECT 1 FROM {_ENTRY} AS undone WHERE undone.id = NEW.reverses_id AND undone.tenant = NEW.tenant
    AND undone.debit = NEW.credit AND undone.credit = NEW.debit AND undone.amount_nano = NEW.amount_nano
    AND undone.reverses_id IS NULL
"""  # noqa: S608  # names of ours
_WRONG_REVERSAL: Final = "a reversal must have the amount of the reversed entry and swap its accounts"
_FINAL: Final = "a finalized invoice cannot be changed: correct it with a credit note or on the next invoice"
_GAP: Final = "invoices are created as drafts and numbered without gaps"
_BACK: Final = "ledger counters and the last closed month cannot decrease"
_GOES_BACK: Final = """
    NEW.tenant <> OLD.tenant OR NEW.entries < OLD.entries OR NEW.invoices < OLD.invoices
    OR NEW.credit_notes < OLD.credit_notes OR NEW.closed_through < OLD.closed_through
    OR (OLD.closed_through IS NOT NULL AND NEW.closed_through IS NULL)
"""
_NEXT: Final = f"1 + coalesce((SELECT max(number) FROM {_INVOICE} WHERE tenant = NEW.tenant), 0)"  # noqa: S608

_POSTGRESQL: Final = (
    """
    CREATE OR REPLACE FUNCTION billing_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'the ledger is append-only: % is refused', TG_OP
            USING ERRCODE = 'integrity_constraint_violation';
    END $$
    """,
    f"""
    CREATE OR REPLACE FUNCTION billing_check_reversal() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF NEW.reverses_id IS NOT NULL AND NOT EXISTS ({_UNDOES}) THEN
            RAISE EXCEPTION '{_WRONG_REVERSAL}' USING ERRCODE = 'integrity_constraint_violation';
        END IF;
        RETURN NEW;
    END $$
    """,
    f"""
    CREATE OR REPLACE FUNCTION billing_keep_invoice() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF TG_OP <> 'INSERT' AND OLD.status = 'finalized' THEN
            RAISE EXCEPTION '{_FINAL}' USING ERRCODE = 'integrity_constraint_violation';
        END IF;
        IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
        IF NEW.status = 'finalized' AND (TG_OP = 'INSERT' OR NEW.number IS DISTINCT FROM {_NEXT}) THEN
            RAISE EXCEPTION '{_GAP}' USING ERRCODE = 'integrity_constraint_violation';
        END IF;
        RETURN NEW;
    END $$
    """,
    f"""
    CREATE OR REPLACE FUNCTION billing_keep_line() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF (TG_OP <> 'INSERT' AND EXISTS (
                SELECT 1 FROM {_INVOICE} WHERE id = OLD.invoice_id AND status = 'finalized'))
            OR (TG_OP <> 'DELETE' AND EXISTS (
                SELECT 1 FROM {_INVOICE} WHERE id = NEW.invoice_id AND status = 'finalized')) THEN
            RAISE EXCEPTION '{_FINAL}' USING ERRCODE = 'integrity_constraint_violation';
        END IF;
        IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
        RETURN NEW;
    END $$
    """,  # noqa: S608
    f"""
    CREATE OR REPLACE FUNCTION billing_keep_head() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF TG_OP = 'DELETE' OR {_GOES_BACK} THEN
            RAISE EXCEPTION '{_BACK}' USING ERRCODE = 'integrity_constraint_violation';
        END IF;
        RETURN NEW;
    END $$
    """,
    *(notes.postgresql(table) for table in notes.RULES),
    *(
        f"CREATE OR REPLACE TRIGGER billing_rules BEFORE INSERT ON {table}"
        f" FOR EACH ROW EXECUTE FUNCTION {table}_check()"
        for table in notes.RULES
    ),
    *(
        f"CREATE OR REPLACE TRIGGER billing_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table}"
        " FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse()"
        for table in BOOKS
    ),
    *(
        f"CREATE OR REPLACE TRIGGER billing_no_truncate BEFORE TRUNCATE ON {table}"
        " FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse()"
        for table in _PARTLY_PROTECTED
    ),
    f"CREATE OR REPLACE TRIGGER billing_reversal BEFORE INSERT ON {_ENTRY}"
    " FOR EACH ROW EXECUTE FUNCTION billing_check_reversal()",
    f"CREATE OR REPLACE TRIGGER billing_final BEFORE INSERT OR UPDATE OR DELETE ON {_INVOICE}"
    " FOR EACH ROW EXECUTE FUNCTION billing_keep_invoice()",
    f"CREATE OR REPLACE TRIGGER billing_final BEFORE INSERT OR UPDATE OR DELETE ON {_LINE}"
    " FOR EACH ROW EXECUTE FUNCTION billing_keep_line()",
    f"CREATE OR REPLACE TRIGGER billing_grows BEFORE UPDATE OR DELETE ON {_HEAD}"
    " FOR EACH ROW EXECUTE FUNCTION billing_keep_head()",
)
_POSTGRESQL_TRIGGERS: Final = (
    *(("billing_append_only", table) for table in BOOKS),
    *(("billing_no_truncate", table) for table in _PARTLY_PROTECTED),
    *(("billing_rules", table) for table in notes.RULES),
    ("billing_reversal", _ENTRY),
    ("billing_final", _INVOICE),
    ("billing_final", _LINE),
    ("billing_grows", _HEAD),
)


_UNIQUE: Final = {
    _ENTRY: "id = NEW.id OR (tenant = NEW.tenant AND number = NEW.number) OR reverses_id = NEW.reverses_id",
    "billing_usageposting": "entry_id = NEW.entry_id",
    "billing_creditgrant": "id = NEW.id",
    notes.NOTE: "id = NEW.id OR (tenant = NEW.tenant AND number = NEW.number)",
    notes.LINE: "id = NEW.id OR (credit_note_id = NEW.credit_note_id AND position = NEW.position)",
    _INVOICE: ("id = NEW.id OR (tenant = NEW.tenant AND (month = NEW.month OR number = NEW.number))"),
}
"""Table -> condition under which a new row would replace an existing one, by every unique key."""


def _sqlite() -> dict[str, str]:
    def refuse(text: str) -> str:
        return f"BEGIN SELECT RAISE(ABORT, '{text}'); END"

    found = {}
    for table in BOOKS:
        for verb in ("UPDATE", "DELETE"):
            text = refuse(f"the ledger is append-only: {verb} is refused")
            found[f"{table}_{verb.lower()}"] = f"BEFORE {verb} ON {table} {text}"
        # REPLACE deletes the conflicting row without firing a DELETE trigger.
        same = f"SELECT 1 FROM {table} WHERE {_UNIQUE[table]}"  # noqa: S608
        text = refuse("the ledger is append-only: REPLACE is refused")
        found[f"{table}_replace"] = f"BEFORE INSERT ON {table} WHEN EXISTS ({same}) {text}"
    found |= notes.sqlite()
    found["billing_reversal"] = (
        f"BEFORE INSERT ON {_ENTRY} WHEN NEW.reverses_id IS NOT NULL AND NOT EXISTS ({_UNDOES})"
        f" {refuse(_WRONG_REVERSAL)}"
    )
    for verb in ("UPDATE", "DELETE"):
        found[f"billing_final_{verb.lower()}"] = (
            f"BEFORE {verb} ON {_INVOICE} WHEN OLD.status = 'finalized' {refuse(_FINAL)}"
        )
    found["billing_number"] = (
        f"BEFORE UPDATE ON {_INVOICE} WHEN OLD.status = 'draft' AND NEW.status = 'finalized'"
        f" AND NEW.number IS NOT {_NEXT}"
        f" {refuse(_GAP)}"
    )
    found["billing_drafted"] = f"BEFORE INSERT ON {_INVOICE} WHEN NEW.status = 'finalized' {refuse(_GAP)}"
    final = f"EXISTS (SELECT 1 FROM {_INVOICE} WHERE id = %s.invoice_id AND status = 'finalized')"  # noqa: S608
    same = f"SELECT 1 FROM {_INVOICE} WHERE status = 'finalized' AND ({_UNIQUE[_INVOICE]})"  # noqa: S608
    for verb, other in (("INSERT", ""), ("UPDATE", " AND id <> OLD.id")):
        found[f"billing_final_replace_{verb.lower()}"] = (
            f"BEFORE {verb} ON {_INVOICE} WHEN EXISTS ({same}{other}) {refuse(_FINAL)}"
        )
    found["billing_head_update"] = f"BEFORE UPDATE ON {_HEAD} WHEN {_GOES_BACK} {refuse(_BACK)}"
    found["billing_head_delete"] = f"BEFORE DELETE ON {_HEAD} {refuse(_BACK)}"
    same = f"SELECT 1 FROM {_HEAD} WHERE tenant = NEW.tenant"  # noqa: S608
    found["billing_head_replace"] = f"BEFORE INSERT ON {_HEAD} WHEN EXISTS ({same}) {refuse(_BACK)}"
    # Refuse a line that would replace a finalized invoice's line by its id.
    same = (
        f"SELECT 1 FROM {_LINE} JOIN {_INVOICE} ON {_INVOICE}.id = {_LINE}.invoice_id"  # noqa: S608
        f" WHERE {_LINE}.id = NEW.id AND {_INVOICE}.status = 'finalized'"
    )
    found["billing_line_replace"] = f"BEFORE INSERT ON {_LINE} WHEN EXISTS ({same}) {refuse(_FINAL)}"
    for verb, rows in (("INSERT", ("NEW",)), ("UPDATE", ("OLD", "NEW")), ("DELETE", ("OLD",))):
        when = " OR ".join(final % row for row in rows)
        found[f"billing_line_{verb.lower()}"] = f"BEFORE {verb} ON {_LINE} WHEN {when} {refuse(_FINAL)}"
    return found


_SQLITE: Final = _sqlite()


def install(connection: BaseDatabaseWrapper) -> None:
    """Create the triggers; a second call changes nothing."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            for statement in _POSTGRESQL:
                cursor.execute(statement)
            return
        for name, body in _SQLITE.items():
            cursor.execute(f"CREATE TRIGGER IF NOT EXISTS {name} {body}")


def remove(connection: BaseDatabaseWrapper) -> None:
    """Drop the triggers. On PostgreSQL only the tables' owner may do this."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            for name, table in _POSTGRESQL_TRIGGERS:
                cursor.execute(f"DROP TRIGGER IF EXISTS {name} ON {table}")
            return
        for name in _SQLITE:
            cursor.execute(f"DROP TRIGGER IF EXISTS {name}")


def installed(connection: BaseDatabaseWrapper) -> bool:
    """Return True if all triggers exist and, on PostgreSQL, are enabled."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(
                "SELECT count(*) FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid"
                " WHERE tgname LIKE 'billing\\_%%' AND relname = ANY(%s) AND tgenabled IN ('O', 'A')",
                [list(TABLES)],
            )
            return bool(cursor.fetchone()[0] == len(_POSTGRESQL_TRIGGERS))
        cursor.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")
        return set(_SQLITE) <= {name for (name,) in cursor.fetchall()}
