"""Who sells and who is billed: dated records, of which documents keep copies."""
