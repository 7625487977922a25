"""Changes of tenants, users, projects, service accounts and keys."""

from controlplane.tenants.services.keys import (
    LONGEST_OVERLAP,
    api_key_create,
    api_key_revoke,
    api_key_rotate,
    api_key_update,
    api_keys_revoke,
    api_keys_touch,
    api_keys_unroute_expired,
)
from controlplane.tenants.services.projects import (
    project_archive,
    project_create,
    project_rename,
    service_account_create,
    service_account_disable,
    service_account_set_role,
)
from controlplane.tenants.services.suspension import tenant_resume, tenant_route_publish, tenant_suspend
from controlplane.tenants.services.tenants import tenant_create, user_create, user_end_sessions

__all__ = [
    "LONGEST_OVERLAP",
    "api_key_create",
    "api_key_revoke",
    "api_key_rotate",
    "api_key_update",
    "api_keys_revoke",
    "api_keys_touch",
    "api_keys_unroute_expired",
    "project_archive",
    "project_create",
    "project_rename",
    "service_account_create",
    "service_account_disable",
    "service_account_set_role",
    "tenant_create",
    "tenant_resume",
    "tenant_route_publish",
    "tenant_suspend",
    "user_create",
    "user_end_sessions",
]
