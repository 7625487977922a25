"""REST of tenants: `keys`, `projects` and, for staff, `tenants`."""
