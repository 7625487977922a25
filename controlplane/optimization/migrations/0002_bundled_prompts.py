from django.db import migrations

from contracts.recipes.bundled_prompts import BUNDLED  # noqa: F401  # decides the rows
from controlplane.optimization.bundled_sets import add_bundled_sets


class Migration(migrations.Migration):
    dependencies = [("optimization", "0001_initial")]

    operations = [migrations.RunPython(add_bundled_sets, migrations.RunPython.noop)]
