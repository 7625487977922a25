"""The route table as rows, and the outbox of its changes."""

from __future__ import annotations

from django.db import models


class RouteCounter(models.Model):
    """The one row whose lock orders all route changes: versions commit in the order they are given."""

    version = models.BigIntegerField(help_text="Version of the newest change.")

    def __str__(self) -> str:
        return f"version {self.version}"


class RouteEntryRow(models.Model):
    """One entry of the table in force, under its path (see contracts.route_table)."""

    path = models.CharField(max_length=200, primary_key=True)
    entry = models.JSONField()

    def __str__(self) -> str:
        return self.path


class RouteDelta(models.Model):
    """A change, kept until every publisher is past it; `entry` null removes the path."""

    version = models.BigIntegerField(primary_key=True)
    path = models.CharField(max_length=200)
    entry = models.JSONField(null=True)
    created_at = models.DateTimeField(auto_now_add=True, db_index=True)

    def __str__(self) -> str:
        return f"{self.version} {self.path}"
