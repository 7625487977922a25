"""The triggers of the books as 0003 makes them. Never changed: later ones come with a migration."""

POSTGRESQL = (
    """
        CREATE OR REPLACE FUNCTION billing_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN RAISE EXCEPTION 'the books are append-only: % is refused', TG_OP USING ERRCODE =
        'integrity_constraint_violation'; END $$
    """,
    """
        CREATE OR REPLACE FUNCTION billing_check_reversal() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN IF NEW.reverses_id IS NOT NULL AND NOT EXISTS ( SELECT 1 FROM billing_journalentry AS undone
        WHERE undone.id = NEW.reverses_id AND undone.tenant = NEW.tenant AND undone.debit = NEW.credit AND
        undone.credit = NEW.debit AND undone.amount_nano = NEW.amount_nano AND undone.reverses_id IS NULL )
        THEN
        RAISE EXCEPTION
        'a reversal has the amount of what it reverses, and its accounts the other way round' USING ERRCODE
        = 'integrity_constraint_violation'; END IF;
        RETURN NEW; END $$
    """,
    """
        CREATE OR REPLACE FUNCTION billing_keep_invoice() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN IF TG_OP <> 'INSERT' AND OLD.status = 'finalized' THEN
        RAISE EXCEPTION 'a finalized invoice is never changed: correct it by a reversal, on the next one'
        USING ERRCODE = 'integrity_constraint_violation'; END IF;
        IF TG_OP = 'DELETE' THEN
        RETURN OLD; END IF;
        IF NEW.status = 'finalized' AND (TG_OP = 'INSERT' OR NEW.number IS DISTINCT FROM 1 +
        coalesce((SELECT max(number) FROM billing_invoice WHERE tenant = NEW.tenant), 0)) THEN
        RAISE EXCEPTION 'invoices are drafted first, and numbered without a gap' USING ERRCODE =
        'integrity_constraint_violation'; END IF;
        RETURN NEW; END $$
    """,
    """
        CREATE OR REPLACE FUNCTION billing_keep_line() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN IF (TG_OP <> 'INSERT' AND EXISTS ( SELECT 1 FROM billing_invoice WHERE id = OLD.invoice_id AND
        status = 'finalized')) OR (TG_OP <> 'DELETE' AND EXISTS ( SELECT 1 FROM billing_invoice WHERE id =
        NEW.invoice_id AND status = 'finalized')) THEN
        RAISE EXCEPTION 'a finalized invoice is never changed: correct it by a reversal, on the next one'
        USING ERRCODE = 'integrity_constraint_violation'; END IF;
        IF TG_OP = 'DELETE' THEN
        RETURN OLD; END IF;
        RETURN NEW; END $$
    """,
    """
        CREATE OR REPLACE FUNCTION billing_keep_head() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN IF TG_OP = 'DELETE' OR NEW.tenant <> OLD.tenant OR NEW.entries < OLD.entries OR NEW.invoices <
        OLD.invoices OR NEW.closed_through < OLD.closed_through OR (OLD.closed_through IS NOT NULL AND
        NEW.closed_through IS NULL) THEN
        RAISE EXCEPTION 'the counters of the books, and the months that are closed, only grow' USING ERRCODE
        = 'integrity_constraint_violation'; END IF;
        RETURN NEW; END $$
    """,
    """
        CREATE OR REPLACE TRIGGER billing_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON
        billing_journalentry FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse()
    """,
    """
        CREATE OR REPLACE TRIGGER billing_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON
        billing_usageposting FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse()
    """,
    """
        CREATE OR REPLACE TRIGGER billing_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON
        billing_creditgrant FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse()
    """,
    """
        CREATE OR REPLACE TRIGGER billing_no_truncate BEFORE TRUNCATE ON billing_invoice FOR EACH STATEMENT
        EXECUTE FUNCTION billing_refuse()
    """,
    """
        CREATE OR REPLACE TRIGGER billing_no_truncate BEFORE TRUNCATE ON billing_invoiceline FOR EACH
        STATEMENT EXECUTE FUNCTION billing_refuse()
    """,
    """
        CREATE OR REPLACE TRIGGER billing_no_truncate BEFORE TRUNCATE ON billing_ledgerhead FOR EACH
        STATEMENT EXECUTE FUNCTION billing_refuse()
    """,
    """
        CREATE OR REPLACE TRIGGER billing_reversal BEFORE INSERT ON billing_journalentry FOR EACH ROW
        EXECUTE FUNCTION billing_check_reversal()
    """,
    """
        CREATE OR REPLACE TRIGGER billing_final BEFORE INSERT OR UPDATE OR DELETE ON billing_invoice FOR
        EACH ROW EXECUTE FUNCTION billing_keep_invoice()
    """,
    """
        CREATE OR REPLACE TRIGGER billing_final BEFORE INSERT OR UPDATE OR DELETE ON billing_invoiceline FOR
        EACH ROW EXECUTE FUNCTION billing_keep_line()
    """,
    """
        CREATE OR REPLACE TRIGGER billing_grows BEFORE UPDATE OR DELETE ON billing_ledgerhead FOR EACH ROW
        EXECUTE FUNCTION billing_keep_head()
    """,
)
POSTGRESQL_REMOVED = (
    "DROP TRIGGER IF EXISTS billing_append_only ON billing_journalentry",
    "DROP TRIGGER IF EXISTS billing_append_only ON billing_usageposting",
    "DROP TRIGGER IF EXISTS billing_append_only ON billing_creditgrant",
    "DROP TRIGGER IF EXISTS billing_no_truncate ON billing_invoice",
    "DROP TRIGGER IF EXISTS billing_no_truncate ON billing_invoiceline",
    "DROP TRIGGER IF EXISTS billing_no_truncate ON billing_ledgerhead",
    "DROP TRIGGER IF EXISTS billing_reversal ON billing_journalentry",
    "DROP TRIGGER IF EXISTS billing_final ON billing_invoice",
    "DROP TRIGGER IF EXISTS billing_final ON billing_invoiceline",
    "DROP TRIGGER IF EXISTS billing_grows ON billing_ledgerhead",
)
SQLITE = {
    "billing_journalentry_update": """
        BEFORE UPDATE ON billing_journalentry
        BEGIN SELECT RAISE(ABORT, 'the books are append-only: UPDATE is refused'); END
    """,
    "billing_journalentry_delete": """
        BEFORE DELETE ON billing_journalentry
        BEGIN SELECT RAISE(ABORT, 'the books are append-only: DELETE is refused'); END
    """,
    "billing_journalentry_replace": """
        BEFORE INSERT ON billing_journalentry
        WHEN EXISTS (SELECT 1 FROM billing_journalentry WHERE id = NEW.id OR (tenant = NEW.tenant AND number
        = NEW.number) OR reverses_id = NEW.reverses_id)
        BEGIN SELECT RAISE(ABORT, 'the books are append-only: REPLACE is refused'); END
    """,
    "billing_usageposting_update": """
        BEFORE UPDATE ON billing_usageposting
        BEGIN SELECT RAISE(ABORT, 'the books are append-only: UPDATE is refused'); END
    """,
    "billing_usageposting_delete": """
        BEFORE DELETE ON billing_usageposting
        BEGIN SELECT RAISE(ABORT, 'the books are append-only: DELETE is refused'); END
    """,
    "billing_usageposting_replace": """
        BEFORE INSERT ON billing_usageposting
        WHEN EXISTS (SELECT 1 FROM billing_usageposting WHERE entry_id = NEW.entry_id)
        BEGIN SELECT RAISE(ABORT, 'the books are append-only: REPLACE is refused'); END
    """,
    "billing_creditgrant_update": """
        BEFORE UPDATE ON billing_creditgrant
        BEGIN SELECT RAISE(ABORT, 'the books are append-only: UPDATE is refused'); END
    """,
    "billing_creditgrant_delete": """
        BEFORE DELETE ON billing_creditgrant
        BEGIN SELECT RAISE(ABORT, 'the books are append-only: DELETE is refused'); END
    """,
    "billing_creditgrant_replace": """
        BEFORE INSERT ON billing_creditgrant
        WHEN EXISTS (SELECT 1 FROM billing_creditgrant WHERE id = NEW.id)
        BEGIN SELECT RAISE(ABORT, 'the books are append-only: REPLACE is refused'); END
    """,
    "billing_reversal": """
        BEFORE INSERT ON billing_journalentry
        WHEN NEW.reverses_id IS NOT NULL AND NOT EXISTS ( SELECT 1 FROM billing_journalentry AS undone WHERE
        undone.id = NEW.reverses_id AND undone.tenant = NEW.tenant AND undone.debit = NEW.credit AND
        undone.credit = NEW.debit AND undone.amount_nano = NEW.amount_nano AND undone.reverses_id IS NULL )
        BEGIN SELECT RAISE(ABORT,
        'a reversal has the amount of what it reverses, and its accounts the other way round'); END
    """,
    "billing_final_update": """
        BEFORE UPDATE ON billing_invoice
        WHEN OLD.status = 'finalized'
        BEGIN SELECT RAISE(ABORT,
        'a finalized invoice is never changed: correct it by a reversal, on the next one'); END
    """,
    "billing_final_delete": """
        BEFORE DELETE ON billing_invoice
        WHEN OLD.status = 'finalized'
        BEGIN SELECT RAISE(ABORT,
        'a finalized invoice is never changed: correct it by a reversal, on the next one'); END
    """,
    "billing_number": """
        BEFORE UPDATE ON billing_invoice
        WHEN OLD.status = 'draft' AND NEW.status = 'finalized' AND NEW.number IS NOT 1 + coalesce((SELECT
        max(number) FROM billing_invoice WHERE tenant = NEW.tenant), 0)
        BEGIN SELECT RAISE(ABORT, 'invoices are drafted first, and numbered without a gap'); END
    """,
    "billing_drafted": """
        BEFORE INSERT ON billing_invoice
        WHEN NEW.status = 'finalized'
        BEGIN SELECT RAISE(ABORT, 'invoices are drafted first, and numbered without a gap'); END
    """,
    "billing_final_replace_insert": """
        BEFORE INSERT ON billing_invoice
        WHEN EXISTS (SELECT 1 FROM billing_invoice WHERE status = 'finalized' AND (id = NEW.id OR (tenant =
        NEW.tenant AND (month = NEW.month OR number = NEW.number))))
        BEGIN SELECT RAISE(ABORT,
        'a finalized invoice is never changed: correct it by a reversal, on the next one'); END
    """,
    "billing_final_replace_update": """
        BEFORE UPDATE ON billing_invoice
        WHEN EXISTS (SELECT 1 FROM billing_invoice WHERE status = 'finalized' AND (id = NEW.id OR (tenant =
        NEW.tenant AND (month = NEW.month OR number = NEW.number))) AND id <> OLD.id)
        BEGIN SELECT RAISE(ABORT,
        'a finalized invoice is never changed: correct it by a reversal, on the next one'); END
    """,
    "billing_head_update": """
        BEFORE UPDATE ON billing_ledgerhead
        WHEN NEW.tenant <> OLD.tenant OR NEW.entries < OLD.entries OR NEW.invoices < OLD.invoices OR
        NEW.closed_through < OLD.closed_through OR (OLD.closed_through IS NOT NULL AND NEW.closed_through IS
        NULL)
        BEGIN SELECT RAISE(ABORT, 'the counters of the books, and the months that are closed, only grow');
        END
    """,
    "billing_head_delete": """
        BEFORE DELETE ON billing_ledgerhead
        BEGIN SELECT RAISE(ABORT, 'the counters of the books, and the months that are closed, only grow');
        END
    """,
    "billing_head_replace": """
        BEFORE INSERT ON billing_ledgerhead
        WHEN EXISTS (SELECT 1 FROM billing_ledgerhead WHERE tenant = NEW.tenant)
        BEGIN SELECT RAISE(ABORT, 'the counters of the books, and the months that are closed, only grow');
        END
    """,
    "billing_line_replace": """
        BEFORE INSERT ON billing_invoiceline
        WHEN EXISTS (SELECT 1 FROM billing_invoiceline JOIN billing_invoice ON billing_invoice.id =
        billing_invoiceline.invoice_id WHERE billing_invoiceline.id = NEW.id AND billing_invoice.status =
        'finalized')
        BEGIN SELECT RAISE(ABORT,
        'a finalized invoice is never changed: correct it by a reversal, on the next one'); END
    """,
    "billing_line_insert": """
        BEFORE INSERT ON billing_invoiceline
        WHEN EXISTS (SELECT 1 FROM billing_invoice WHERE id = NEW.invoice_id AND status = 'finalized')
        BEGIN SELECT RAISE(ABORT,
        'a finalized invoice is never changed: correct it by a reversal, on the next one'); END
    """,
    "billing_line_update": """
        BEFORE UPDATE ON billing_invoiceline
        WHEN EXISTS (SELECT 1 FROM billing_invoice WHERE id = OLD.invoice_id AND status = 'finalized') OR
        EXISTS (SELECT 1 FROM billing_invoice WHERE id = NEW.invoice_id AND status = 'finalized')
        BEGIN SELECT RAISE(ABORT,
        'a finalized invoice is never changed: correct it by a reversal, on the next one'); END
    """,
    "billing_line_delete": """
        BEFORE DELETE ON billing_invoiceline
        WHEN EXISTS (SELECT 1 FROM billing_invoice WHERE id = OLD.invoice_id AND status = 'finalized')
        BEGIN SELECT RAISE(ABORT,
        'a finalized invoice is never changed: correct it by a reversal, on the next one'); END
    """,
}
