"""Tenants, the people in them, and their API keys."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib.auth.base_user import AbstractBaseUser, BaseUserManager
from django.contrib.auth.models import PermissionsMixin
from django.db import models
from django.db.models.functions import Lower
from django.utils import timezone


class Tenant(models.Model):
    """Who registers adapters, holds keys and gets a bill."""

    id = models.SlugField(primary_key=True, max_length=63)
    name = models.CharField(max_length=200)
    cache_salt = models.CharField(max_length=64, help_text="Hex; keeps prefix caches of tenants apart.")
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.id


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
    tenants = models.ManyToManyField(Tenant, through="Membership", related_name="users")

    objects: ClassVar[UserManager] = UserManager()
    USERNAME_FIELD = "email"
    REQUIRED_FIELDS: ClassVar[list[str]] = []

    class Meta:
        constraints = [models.UniqueConstraint(Lower("email"), name="user_email_any_case")]

    def __str__(self) -> str:
        return self.email


class Membership(models.Model):
    """A user's place in a tenant."""

    class Role(models.TextChoices):
        OWNER = "owner"
        MEMBER = "member"

    user = models.ForeignKey(User, models.CASCADE, related_name="memberships")
    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=10, choices=Role.choices, default=Role.OWNER)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "tenant"], name="membership_once")]

    def __str__(self) -> str:
        return f"{self.user_id} in {self.tenant_id}"


class ApiKey(models.Model):
    """`gw_<public_id>_<secret>`; of the secret only its SHA-256 is kept."""

    class Scope(models.TextChoices):
        INFERENCE = "inference"
        MANAGE = "manage"

    public_id = models.CharField(max_length=16, primary_key=True)
    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=100)
    project = models.CharField(max_length=63, default="default")
    secret_sha256 = models.CharField(max_length=64)
    scopes = models.JSONField(help_text="List of `inference`, `manage`.")
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    created_by = models.ForeignKey(User, models.SET_NULL, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-created_at", "public_id")

    def __str__(self) -> str:
        return f"gw_{self.public_id}_..."

    @property
    def is_live(self) -> bool:
        """Neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > timezone.now())
