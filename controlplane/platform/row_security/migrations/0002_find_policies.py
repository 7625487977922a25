"""Who finds a row while who they are is being proven may read it, and no more: a policy apart from writing."""

from django.db import migrations

from controlplane.platform.row_security.policies import KEY, USER, RowPolicyChange, owned_by

_MEMBER = "SELECT 1 FROM tenants_membership AS member WHERE member.tenant_id = tenants_tenant.id"
_OF_USER = f"user_id::text = {USER}"
_TENANTS_OF_USER = f"EXISTS ({_MEMBER} AND member.{_OF_USER})"
_OF_KEY = f"public_id = {KEY}"


class Migration(migrations.Migration):
    dependencies = [("row_security", "0001_policies")]

    operations = [
        RowPolicyChange(table, owned_by(column), before=f"{owned_by(column)} OR {find}", find=find)
        for table, column, find in (
            ("tenants_tenant", "id", _TENANTS_OF_USER),
            ("tenants_membership", "tenant_id", _OF_USER),
            ("tenants_apikey", "tenant_id", _OF_KEY),
        )
    ]
