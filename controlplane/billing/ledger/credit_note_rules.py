"""Database rules of credit notes: SQL conditions, valid on both databases, that refuse an INSERT."""

from __future__ import annotations

from typing import Final

NOTE: Final = "billing_creditnote"
LINE: Final = "billing_creditnoteline"
_INVOICE: Final = "billing_invoice"
_INVOICE_LINE: Final = "billing_invoiceline"

_IN_FORCE: Final = f"""
    n.voids_id IS NULL AND NOT EXISTS (SELECT 1 FROM {NOTE} AS v WHERE v.voids_id = n.id)
"""  # noqa: S608  # names of ours
_OF_NONE: Final = f"""NOT EXISTS (
    SELECT 1 FROM {_INVOICE} AS i WHERE i.id = NEW.invoice_id AND i.tenant = NEW.tenant
    AND i.currency = NEW.currency AND i.status = 'finalized')
"""  # noqa: S608  # names of ours
_GAP: Final = f"""
    NEW.number <> 1 + coalesce((SELECT max(n.number) FROM {NOTE} AS n WHERE n.tenant = NEW.tenant), 0)
"""  # noqa: S608
_VOID: Final = f"""
    NEW.voids_id IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM {NOTE} AS n WHERE n.id = NEW.voids_id AND {_IN_FORCE} AND n.tenant = NEW.tenant
    AND n.invoice_id = NEW.invoice_id AND n.net_nano = NEW.net_nano AND n.tax_nano = NEW.tax_nano
    AND n.pre_payment_nano = NEW.pre_payment_nano AND n.post_payment_as = NEW.post_payment_as)
"""  # noqa: S608
_MORE: Final = f"""NEW.voids_id IS NULL AND EXISTS (
    SELECT 1 FROM {_INVOICE} AS i WHERE i.id = NEW.invoice_id AND (
    i.tax_nano < NEW.tax_nano
        + coalesce((SELECT sum(n.tax_nano) FROM {NOTE} AS n WHERE n.invoice_id = i.id AND {_IN_FORCE}), 0)
    OR i.prepaid_nano + i.due_nano - i.shortfall_nano - i.tax_nano < NEW.net_nano
        + coalesce((SELECT sum(n.net_nano) FROM {NOTE} AS n WHERE n.invoice_id = i.id AND {_IN_FORCE}), 0)))
"""  # noqa: S608
_LINES_MORE: Final = f"""
    NEW.amount_nano + coalesce(
        (SELECT sum(l.amount_nano) FROM {LINE} AS l WHERE l.credit_note_id = NEW.credit_note_id), 0)
    > (SELECT n.net_nano FROM {NOTE} AS n WHERE n.id = NEW.credit_note_id)
"""  # noqa: S608
_LINE_MORE: Final = f"""
    NEW.invoice_line_id IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM {_INVOICE_LINE} AS i JOIN {NOTE} AS whole ON whole.invoice_id = i.invoice_id
    WHERE i.id = NEW.invoice_line_id AND whole.id = NEW.credit_note_id
    AND (whole.voids_id IS NOT NULL OR i.amount_nano >= NEW.amount_nano + coalesce((
        SELECT sum(l.amount_nano) FROM {LINE} AS l JOIN {NOTE} AS n ON n.id = l.credit_note_id
        WHERE l.invoice_line_id = i.id AND {_IN_FORCE}), 0)))
"""  # noqa: S608

RULES: Final = {
    NOTE: (
        ("of", _OF_NONE, "a credit note needs a finalized invoice of the same tenant"),
        ("number", _GAP, "credit notes are numbered without gaps"),
        ("void", _VOID, "a credit note can only void a whole credit note that is in force"),
        ("bound", _MORE, "credit notes cannot exceed the amount of the invoice"),
    ),
    LINE: (
        ("sum", _LINES_MORE, "the lines of a credit note cannot exceed its net amount"),
        ("bound", _LINE_MORE, "credit notes cannot exceed the amount of the invoice line"),
    ),
}
"""Table -> (name, condition under which an INSERT is refused, error message)."""


def postgresql(table: str) -> str:
    """Return the SQL of the trigger function `<table>_check`, which applies the table's rules."""
    checks = "\n".join(
        f"IF {condition} THEN RAISE EXCEPTION '{text}' USING ERRCODE = 'integrity_constraint_violation';"
        " END IF;"
        for _, condition, text in RULES[table]
    )
    return (
        f"CREATE OR REPLACE FUNCTION {table}_check() RETURNS trigger LANGUAGE plpgsql AS $$"
        f" BEGIN {checks} RETURN NEW; END $$"
    )


def sqlite() -> dict[str, str]:
    """Return the SQLite triggers' definitions by name."""
    return {
        f"{table}_{name}": f"BEFORE INSERT ON {table} WHEN {condition}"
        f" BEGIN SELECT RAISE(ABORT, '{text}'); END"
        for table, rules in RULES.items()
        for name, condition, text in rules
    }
