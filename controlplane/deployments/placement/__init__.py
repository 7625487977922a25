"""Which adapters belong on which copies."""
