"""Each tenant's `default` project, and a row for every project that a key names."""

from __future__ import annotations

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor


def make_projects(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    tenants, projects, keys = (apps.get_model("tenants", name) for name in ("Tenant", "Project", "ApiKey"))
    for tenant in tenants.objects.iterator():
        own = keys.objects.filter(tenant=tenant)
        for slug in sorted({"default", *own.values_list("project_slug", flat=True).distinct()}):
            project = projects.objects.create(tenant=tenant, slug=slug, name=slug.title())
            own.filter(project_slug=slug).update(project=project)


def name_projects(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    projects, keys = (apps.get_model("tenants", name) for name in ("Project", "ApiKey"))
    for project in projects.objects.iterator():
        keys.objects.filter(project=project).update(project_slug=project.slug, project=None)
    projects.objects.all().delete()


class Migration(migrations.Migration):
    dependencies = [("tenants", "0004_projects")]

    operations = [migrations.RunPython(make_projects, name_projects)]
