"""Tenants, their projects, the people and programs in them, and their API keys."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib.auth.base_user import AbstractBaseUser, BaseUserManager
from django.contrib.auth.models import PermissionsMixin
from django.db import models
from django.db.models.functions import Lower
from django.utils import timezone
from django.utils.crypto import salted_hmac

from controlplane.platform.audit.origin import Actor
from controlplane.tenants.roles import Role


class Tenant(models.Model):
    """A customer: owns adapters, projects and API keys, and is billed."""

    id = models.SlugField(primary_key=True, max_length=63)
    name = models.CharField(max_length=200)
    cache_salt = models.CharField(
        max_length=64, help_text="Hex salt that separates the prefix caches of tenants."
    )
    created_at = models.DateTimeField(auto_now_add=True)
    disabled_at = models.DateTimeField(
        null=True, blank=True, help_text="Scheduled for deletion; access is blocked."
    )
    suspended_at = models.DateTimeField(
        null=True, blank=True, help_text="Time since which gateways refuse its requests."
    )
    suspended_reason = models.CharField(
        max_length=500, blank=True, default="", db_default="", help_text="Reason shown to its members."
    )
    prompt_key = models.CharField(
        max_length=44,
        blank=True,
        default="",
        db_default="",
        help_text="X25519 public key, base64. Gateways encrypt stored prompts with it.",
    )

    def __str__(self) -> str:
        return self.id


class Project(models.Model):
    """A project of a tenant. Usage events hold its slug, so the slug never changes."""

    DEFAULT = "default"
    """Slug of the project that is created with each tenant, and is the default for keys."""

    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="projects")
    slug = models.CharField(max_length=63)
    name = models.CharField(max_length=200)
    created_at = models.DateTimeField(auto_now_add=True)
    archived_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("slug",)
        constraints = [models.UniqueConstraint(fields=["tenant", "slug"], name="project_once")]

    def __str__(self) -> str:
        return f"{self.tenant_id}/{self.slug}"


class UserManager(BaseUserManager["User"]):
    """Makes users for Django's own commands; everything else calls `services.user_create`."""

    def create_user(self, email: str, password: str | None = None, **fields: Any) -> User:
        user = self.model(email=self.normalize_email(email).lower(), **fields)
        user.set_password(password)
        user.save(using=self._db)
        return user

    def create_superuser(self, email: str, password: str | None = None, **fields: Any) -> User:
        return self.create_user(email, password, is_staff=True, is_superuser=True, **fields)


class User(AbstractBaseUser, PermissionsMixin):
    """A person, who logs in by e-mail."""

    email = models.EmailField(unique=True)
    is_staff = models.BooleanField(default=False)
    is_active = models.BooleanField(default=True)
    created_at = models.DateTimeField(default=timezone.now)
    session_epoch = models.PositiveIntegerField(
        default=0, editable=False, help_text="Incremented to end all sessions of the user."
    )
    tenants = models.ManyToManyField(Tenant, through="Membership", related_name="users")

    objects: ClassVar[UserManager] = UserManager()
    USERNAME_FIELD = "email"
    REQUIRED_FIELDS: ClassVar[list[str]] = []

    class Meta:
        constraints = [models.UniqueConstraint(Lower("email"), name="user_email_any_case")]

    def __str__(self) -> str:
        return self.email

    def audit_actor(self) -> Actor:
        return Actor("staff" if self.is_staff else "user", str(self.pk), self.email)

    def _get_session_auth_hash(self, secret: str | None = None) -> str:
        """Return the hash that keeps a session valid; it changes with the password and the epoch."""
        salt = "controlplane.tenants.models.User.get_session_auth_hash"
        value = f"{self.password}${self.session_epoch}"
        return salted_hmac(salt, value, secret=secret, algorithm="sha256").hexdigest()


class Membership(models.Model):
    """A user's membership in a tenant, with a role."""

    user = models.ForeignKey(User, models.CASCADE, related_name="memberships")
    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=10, choices=Role.choices, default=Role.VIEWER)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "tenant"], name="membership_once")]

    def __str__(self) -> str:
        return f"{self.user_id} in {self.tenant_id}"


class ServiceAccount(models.Model):
    """A program's account in a project, which holds API keys; disabling it revokes them all."""

    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="service_accounts")
    project = models.ForeignKey(Project, models.RESTRICT, related_name="service_accounts")
    name = models.CharField(max_length=63)
    role = models.CharField(
        max_length=10, choices=Role.choices, help_text="Permissions of its keys with scope `manage`."
    )
    created_by = models.ForeignKey(User, models.SET_NULL, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    disabled_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("name",)
        constraints = [models.UniqueConstraint(fields=["tenant", "name"], name="service_account_once")]

    def __str__(self) -> str:
        return f"{self.tenant_id}/{self.name}"


class ApiKey(models.Model):
    """An API key, `gw_<public_id>_<secret>`; only the secret's SHA-256 is stored.

    After a rotation the previous secret stays valid until `old_secret_until`.
    """

    PLAYGROUND = "playground"
    """Name of the short-lived keys that the web UI makes for a member's browser."""

    class Scope(models.TextChoices):
        INFERENCE = "inference"
        MANAGE = "manage"
        USAGE = "usage"
        USAGE_WRITE = "usage:write"

    public_id = models.CharField(max_length=16, primary_key=True)
    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=100)
    project = models.ForeignKey(Project, models.RESTRICT, related_name="api_keys")
    service_account = models.ForeignKey(
        ServiceAccount, models.RESTRICT, null=True, blank=True, related_name="api_keys"
    )
    secret_sha256 = models.CharField(max_length=64)
    old_secret_sha256 = models.CharField(max_length=64, blank=True, default="")
    old_secret_until = models.DateTimeField(null=True, blank=True)
    rotated_at = models.DateTimeField(null=True, blank=True)
    scopes = models.JSONField(help_text="List of `inference`, `manage`, `usage`, `usage:write`.")
    allowed_models = models.JSONField(null=True, blank=True, help_text="List of names; null for all.")
    allowed_endpoints = models.JSONField(null=True, blank=True, help_text="Paths below /v1/; null for all.")
    allowed_networks = models.JSONField(null=True, blank=True, help_text="CIDR blocks; null for any address.")
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(
        null=True, blank=True, help_text="With minute precision; null if never."
    )
    created_by = models.ForeignKey(User, models.SET_NULL, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-created_at", "public_id")
        indexes = [
            models.Index(fields=["tenant", "-created_at", "public_id"], name="api_key_newest"),
            models.Index(
                fields=["tenant", "expires_at"],
                condition=models.Q(revoked_at=None, expires_at__isnull=False),
                name="api_key_ends",
            ),
        ]

    def __str__(self) -> str:
        return f"gw_{self.public_id}_..."

    @property
    def is_live(self) -> bool:
        """True if the key is neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > timezone.now())

    @property
    def old_secret_is_live(self) -> bool:
        """True while the secret before the last rotation is still valid."""
        return self.is_live and self.old_secret_until is not None and self.old_secret_until > timezone.now()


class StaffToken(models.Model):
    """A staff member's personal access token, `gs_<public_id>_<secret>`, for scripts that call the REST API.

    Only the secret's SHA-256 is stored. It acts as its user, and is valid while the user is active staff.
    """

    class Scope(models.TextChoices):
        READ = "read"
        WRITE = "write"

    public_id = models.CharField(max_length=16, primary_key=True)
    user = models.ForeignKey(User, models.CASCADE, related_name="staff_tokens")
    name = models.CharField(max_length=100)
    secret_sha256 = models.CharField(max_length=64)
    scope = models.CharField(max_length=10, choices=Scope.choices, help_text="`write` includes `read`.")
    expires_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True, help_text="With minute precision.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-created_at", "public_id")

    def __str__(self) -> str:
        return f"gs_{self.public_id}_..."
