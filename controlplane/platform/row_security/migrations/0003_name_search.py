"""Views by which names are searched under the row policies, and their indexes of trigrams."""

from django.db import migrations

from controlplane.platform.row_security.name_search import ADAPTER_NAMES, API_KEY_NAMES, NameSearch


class Migration(migrations.Migration):
    dependencies = [
        ("adapters", "0005_lists"),
        ("row_security", "0002_find_policies"),
        ("tenants", "0009_key_lists"),
    ]

    operations = [NameSearch(ADAPTER_NAMES), NameSearch(API_KEY_NAMES)]
