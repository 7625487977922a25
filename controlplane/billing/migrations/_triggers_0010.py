"""The rule that 0010 changes: what is prepaid and below 0 is no part of what credit notes take back. Never
changed: later ones come with a migration."""

POSTGRESQL = (
    """
        CREATE OR REPLACE FUNCTION billing_creditnote_check() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF NOT EXISTS ( SELECT 1 FROM billing_invoice AS i WHERE i.id = NEW.invoice_id AND i.tenant =
        NEW.tenant AND i.currency = NEW.currency AND i.status = 'finalized') THEN
        RAISE EXCEPTION 'a credit note is of a finalized invoice of its tenant' USING ERRCODE =
        'integrity_constraint_violation'; END IF;
        IF NEW.number <> 1 + coalesce((SELECT max(n.number) FROM billing_creditnote AS n WHERE n.tenant =
        NEW.tenant), 0) THEN
        RAISE EXCEPTION 'credit notes are numbered without a gap' USING ERRCODE =
        'integrity_constraint_violation'; END IF;
        IF NEW.voids_id IS NOT NULL AND NOT EXISTS ( SELECT 1 FROM billing_creditnote AS n WHERE n.id =
        NEW.voids_id AND n.voids_id IS NULL AND NOT EXISTS (SELECT 1 FROM billing_creditnote AS v WHERE
        v.voids_id = n.id) AND n.tenant = NEW.tenant AND n.invoice_id = NEW.invoice_id AND n.net_nano =
        NEW.net_nano AND n.tax_nano = NEW.tax_nano AND n.pre_payment_nano = NEW.pre_payment_nano AND
        n.post_payment_as = NEW.post_payment_as) THEN
        RAISE EXCEPTION 'a credit note voids another one whole, which stands' USING ERRCODE =
        'integrity_constraint_violation'; END IF;
        IF NEW.voids_id IS NULL AND EXISTS ( SELECT 1 FROM billing_invoice AS i WHERE i.id =
        NEW.invoice_id AND ( i.tax_nano < NEW.tax_nano + coalesce((SELECT sum(n.tax_nano) FROM
        billing_creditnote AS n WHERE n.invoice_id = i.id AND n.voids_id IS NULL AND NOT EXISTS (SELECT 1
        FROM billing_creditnote AS v WHERE v.voids_id = n.id) ), 0) OR i.prepaid_nano + i.due_nano -
        i.shortfall_nano - i.tax_nano < NEW.net_nano + coalesce((SELECT sum(n.net_nano) FROM billing_creditnote AS n WHERE
        n.invoice_id = i.id AND n.voids_id IS NULL AND NOT EXISTS (SELECT 1 FROM billing_creditnote AS v
        WHERE v.voids_id = n.id) ), 0))) THEN
        RAISE EXCEPTION 'credit notes take back no more than the invoice asked for' USING ERRCODE =
        'integrity_constraint_violation'; END IF;
        RETURN NEW;
        END $$
    """,
)
SQLITE = {
    "billing_creditnote_bound": """
        BEFORE INSERT ON billing_creditnote
        WHEN NEW.voids_id IS NULL AND EXISTS ( SELECT 1 FROM billing_invoice AS i WHERE i.id =
        NEW.invoice_id AND ( i.tax_nano < NEW.tax_nano + coalesce((SELECT sum(n.tax_nano) FROM
        billing_creditnote AS n WHERE n.invoice_id = i.id AND n.voids_id IS NULL AND NOT EXISTS (SELECT 1
        FROM billing_creditnote AS v WHERE v.voids_id = n.id) ), 0) OR i.prepaid_nano + i.due_nano -
        i.shortfall_nano - i.tax_nano < NEW.net_nano + coalesce((SELECT sum(n.net_nano) FROM billing_creditnote AS n WHERE
        n.invoice_id = i.id AND n.voids_id IS NULL AND NOT EXISTS (SELECT 1 FROM billing_creditnote AS v
        WHERE v.voids_id = n.id) ), 0)))
        BEGIN SELECT RAISE(ABORT, 'credit notes take back no more than the invoice asked for'); END
    """,
}
