"""Adapters, their immutable versions, and the aliases that point at versions."""

from __future__ import annotations

from django.db import models

from contracts.adapters.reference import AdapterRef, engine_name
from controlplane.adapters.steps import Step
from controlplane.catalog.models import BaseModel
from controlplane.tenants.models import Tenant, User


class Adapter(models.Model):
    """A tenant's adapter of one base model. Its bare name means `pinned`, else the newest ready version."""

    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="adapters")
    name = models.CharField(max_length=63)
    base_model = models.ForeignKey(BaseModel, models.PROTECT, related_name="adapters")
    pinned = models.ForeignKey(
        "AdapterVersion",
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="+",
        help_text="Version of the bare name.",
    )
    pinned_automatically = models.BooleanField(
        default=False,
        db_default=False,
        help_text="True if `pinned` only waits for a version that something can serve.",
    )
    fallback = models.JSONField(
        default=list, blank=True, help_text="Fallback models, in order, for the bare name."
    )
    last_number = models.PositiveIntegerField(
        default=0, help_text="Highest version number ever used, including purged versions."
    )
    labels = models.JSONField(default=dict, blank=True, help_text="The tenant's labels, key to value.")
    notes = models.TextField(blank=True)
    deleted_at = models.DateTimeField(
        null=True, blank=True, db_index=True, help_text="Time of deletion; restorable within the grace time."
    )
    created_by = models.ForeignKey(User, models.SET_NULL, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    live_versions: list[AdapterVersion]
    """Versions that are not deleted, newest first; set by `adapter_list`, as is `live_aliases`."""
    live_aliases: list[Alias]

    class Meta:
        ordering = ("name",)
        constraints = [models.UniqueConstraint(fields=["tenant", "name"], name="adapter_once")]
        # One partial index for the list of live adapters, one for that of deleted ones.
        indexes = [
            models.Index(
                fields=["tenant", "name"], name="adapter_listed", condition=models.Q(deleted_at=None)
            ),
            models.Index(
                fields=["tenant", "name"],
                name="adapter_deleted",
                condition=models.Q(deleted_at__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.tenant_id}/{self.name}"

    @property
    def default_version(self) -> AdapterVersion | None:
        """The version of the bare name; None while none is ready. Needs a row of `adapter_list`."""
        ready = [version for version in self.live_versions if version.is_callable]
        pinned = [version for version in ready if version.pk == self.pinned_id]
        return max(pinned or ready, key=lambda version: version.number, default=None)


class AdapterVersion(models.Model):
    """One upload or import. It is immutable once it is ready or refused."""

    class Status(models.TextChoices):
        PENDING = "pending"
        VALIDATING = "validating"
        READY = "ready"
        REFUSED = "refused"

    adapter = models.ForeignKey(Adapter, models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.PENDING)
    reason = models.TextField(blank=True, help_text="Reason for the refusal.")
    steps = models.JSONField(default=list, help_text="Validation steps: name, title, status, detail.")
    source = models.CharField(max_length=1000, blank=True, help_text="URI of the import; '' for uploads.")
    staging = models.CharField(
        max_length=200, blank=True, help_text="Store key of the files during validation."
    )
    uri = models.CharField(max_length=1000, blank=True, help_text="Folder of the validated files.")
    sha256 = models.CharField(
        max_length=64, blank=True, help_text="Digest of the files, by contracts.adapters.reference."
    )
    rank = models.PositiveIntegerField(null=True, blank=True, help_text="Largest LoRA rank.")
    traits = models.JSONField(
        default=list,
        db_default=[],
        blank=True,
        help_text="Sorted values of contracts.capabilities.traits.Trait: what a copy must serve.",
    )
    size_bytes = models.BigIntegerField(null=True, blank=True)
    config = models.JSONField(null=True, blank=True, help_text="adapter_config.json")
    smoke = models.JSONField(
        null=True, blank=True, help_text="Result of the smoke test against the base model."
    )
    notes = models.TextField(blank=True)
    card = models.TextField(
        blank=True, default="", db_default="", help_text="Text of the adapter's README.md."
    )
    card_html = models.TextField(
        blank=True, default="", db_default="", help_text="Model card as HTML, rendered at validation."
    )
    dataset = models.CharField(max_length=500, blank=True, help_text="Training data.")
    run_url = models.CharField(max_length=500, blank=True, help_text="URL of the training run.")
    base_sha256 = models.CharField(
        max_length=64, blank=True, help_text="Digest of the base checkpoint used in training."
    )
    deleted_at = models.DateTimeField(null=True, blank=True, db_index=True)
    makes_default = models.BooleanField(
        default=False,
        db_default=False,
        help_text="True if the bare name refers to the version once it is ready.",
    )
    attempts = models.PositiveIntegerField(default=0)
    lost_attempts = models.PositiveIntegerField(
        default=0, db_default=0, help_text="Attempts that lost their process: killed, or out of memory."
    )
    heartbeat_at = models.DateTimeField(null=True, blank=True, help_text="Last heartbeat of the validation.")
    retry_at = models.DateTimeField(null=True, blank=True, help_text="Earliest time of the next attempt.")
    created_by = models.ForeignKey(User, models.SET_NULL, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-number",)
        constraints = [models.UniqueConstraint(fields=["adapter", "number"], name="adapter_version_once")]
        indexes = [
            # Nearly all versions are ready; this index finds the others without reading those.
            models.Index(
                fields=["status", "adapter"], name="version_not_ready", condition=~models.Q(status="ready")
            ),
            # Pages count a tenant's versions: of 20,000 they would read 17 MB, of this index a twentieth.
            models.Index(fields=["adapter", "status", "deleted_at", "size_bytes"], name="version_counted"),
        ]

    def __str__(self) -> str:
        return f"{self.adapter}@v{self.number}"

    @property
    def is_settled(self) -> bool:
        """True if the version is ready or refused, and so final."""
        return self.status in (self.Status.READY, self.Status.REFUSED)

    @property
    def remarks(self) -> list[Step]:
        """Steps of a ready version that warned or were skipped; their detail says why."""
        ready = self.status == self.Status.READY
        return [step for step in self.steps if ready and step["status"] in ("warned", "skipped")]

    @property
    def is_callable(self) -> bool:
        """True if the version is ready and not deleted, so that a name may refer to it."""
        return self.status == self.Status.READY and self.deleted_at is None

    @property
    def engine_name(self) -> str:
        """The version's name in usage events and workers; only valid with a digest."""
        tenant, adapter = self.adapter.tenant_id, self.adapter.name
        return engine_name(tenant=tenant, adapter=adapter, version=self.number, sha256=self.sha256)

    def ref(self) -> AdapterRef:
        """Return the reference by which a worker loads this version; only valid for a ready version."""
        return AdapterRef(self.engine_name, self.uri, self.sha256, self.rank or 0, tuple(self.traits))


class Alias(models.Model):
    """A name that a tenant moves between versions: `<adapter>@<alias>`.

    With `arms` it is split among several. `version` is then the first arm's, which stays after the split.
    """

    adapter = models.ForeignKey(Adapter, models.CASCADE, related_name="aliases")
    name = models.CharField(max_length=63)
    version = models.ForeignKey(AdapterVersion, models.CASCADE, related_name="aliases")
    fallback = models.JSONField(
        default=list, blank=True, help_text="Fallback models, in order, for the alias."
    )
    moved_at = models.DateTimeField(auto_now=True)

    live_arms: list[AliasArm]
    """Arms of a split; set by `alias_rows`."""

    class Meta:
        ordering = ("name",)
        constraints = [models.UniqueConstraint(fields=["adapter", "name"], name="alias_once")]

    def __str__(self) -> str:
        return f"{self.adapter}@{self.name}"


class AliasArm(models.Model):
    """One arm of a split alias: a version and its share of the callers."""

    alias = models.ForeignKey(Alias, models.CASCADE, related_name="arms")
    version = models.ForeignKey(AdapterVersion, models.CASCADE, related_name="+")
    percent = models.PositiveSmallIntegerField()

    class Meta:
        ordering = ("pk",)
        constraints = [
            models.UniqueConstraint(fields=["alias", "version"], name="alias_arm_once"),
            models.CheckConstraint(
                condition=models.Q(percent__gte=1, percent__lte=99), name="alias_arm_percent"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.alias}: {self.percent} % version {self.version.number}"


class AliasChange(models.Model):
    """One change of the target of an alias, or of the bare name (""). Rows are append-only.

    `before` and `after` are `{"version": n, "arms": [[n, percent], ...]}`, or null for no alias. They hold
    numbers, not keys, so that the history outlives the versions.
    """

    adapter = models.ForeignKey(Adapter, models.CASCADE, related_name="alias_changes")
    alias = models.CharField(max_length=63, blank=True, help_text="'' for the bare name.")
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)
    reason = models.CharField(max_length=1000, blank=True)
    by = models.CharField(max_length=200, blank=True, help_text="E-mail, key or automation.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-pk",)
        indexes = [models.Index(fields=["adapter", "alias", "-id"], name="alias_change_newest")]

    def __str__(self) -> str:
        return f"{self.adapter}@{self.alias} #{self.pk}"


class AdapterQuota(models.Model):
    """A tenant's limits on stored adapters; null is unlimited. Its row is locked while use is counted."""

    tenant = models.OneToOneField(Tenant, models.CASCADE, primary_key=True, related_name="adapter_quota")
    adapters = models.PositiveIntegerField(null=True, blank=True)
    versions = models.PositiveIntegerField(null=True, blank=True)
    size_bytes = models.PositiveBigIntegerField(null=True, blank=True)

    FIELDS = ("adapters", "versions", "size_bytes")

    def __str__(self) -> str:
        return f"quota of {self.tenant_id}"


class ArtifactRemoval(models.Model):
    """Unused files that are being removed: meanwhile no version may start to use them."""

    sha256 = models.CharField(max_length=64, primary_key=True)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.sha256
