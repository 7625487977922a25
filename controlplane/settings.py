"""Django's settings. What an operator may change comes from `Environment`; the rest is fixed here."""

from __future__ import annotations

import os
from typing import Any

from celery.schedules import crontab, schedule
from django.templatetags.static import static

from controlplane.platform import task_queues
from controlplane.platform.environment import LOCALES, ROOT, VAR, Environment
from controlplane.platform.languages import languages

GRAFTWORK = Environment.from_env(os.environ)

SECRET_KEY = GRAFTWORK.secret_key
DEBUG = GRAFTWORK.debug
ALLOWED_HOSTS = list(GRAFTWORK.allowed_hosts)
CSRF_TRUSTED_ORIGINS = [GRAFTWORK.web_url]
_HTTPS = GRAFTWORK.web_url.startswith("https://")
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = _HTTPS
SESSION_ENGINE = "controlplane.tenants.sessions"
SESSION_COOKIE_NAME, CSRF_COOKIE_NAME = "graftwork_session", "graftwork_csrf"
SECURE_SSL_REDIRECT, SECURE_HSTS_SECONDS = _HTTPS, 31_536_000 if _HTTPS else 0
# HSTS for subdomains, and in browsers' lists, is for the owner of the domain to decide.
SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W021"]
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if _HTTPS else None

INSTALLED_APPS = [
    "unfold",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_htmx",
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "allauth.socialaccount",
    "allauth.socialaccount.providers.openid_connect",
    "django_filters",
    "rest_framework",
    "drf_standardized_errors",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "controlplane.platform.audit",
    "controlplane.platform.idempotency",
    "controlplane.routes",
    "controlplane.tenants",
    "controlplane.webhooks",
    "controlplane.tenants.members",
    "controlplane.tenants.limits",
    "controlplane.catalog",
    "controlplane.deployments",
    "controlplane.optimization",
    "controlplane.artifacts.credentials",
    "controlplane.artifacts.uploads",
    "controlplane.adapters",
    "controlplane.metering",
    "controlplane.billing",
    "controlplane.metering.prompt_log",
    "controlplane.billing.reports",
    "controlplane.canaries",
    "controlplane.sign_up",
    "controlplane.monitoring",
    "controlplane.operations",
    "controlplane.console",
    "controlplane.platform.row_security",
]
MIDDLEWARE = [
    "controlplane.platform.http.stack_room.StackRoomMiddleware",
    "controlplane.platform.http.not_found.NulMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    # Pages alone: whitenoise hands out files compressed already. Django pads against BREACH.
    "controlplane.platform.http.compression.WholeGZipMiddleware",
    "controlplane.console.csp.ContentSecurityPolicyMiddleware",
    "controlplane.platform.audit.origin.AuditOriginMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "controlplane.console.nul.FormNulMiddleware",
    "controlplane.console.direction.DirectionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "controlplane.platform.row_security.middleware.RowScopeMiddleware",
    "controlplane.console.account.transaction.AccountTransaction",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [ROOT / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "controlplane.console.pages.shell",
            ]
        },
    }
]
ROOT_URLCONF = "controlplane.urls"
ASGI_APPLICATION = "controlplane.asgi.application"

DATABASES = {"default": GRAFTWORK.database()}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
AUTH_USER_MODEL = "tenants.User"
LOGIN_URL, LOGIN_REDIRECT_URL, LOGOUT_REDIRECT_URL = "/login", "/", "/login"
AUTHENTICATION_BACKENDS = [
    "django.contrib.auth.backends.ModelBackend",
    "allauth.account.auth_backends.AuthenticationBackend",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in ("MinimumLengthValidator", "CommonPasswordValidator", "NumericPasswordValidator")
]

# Login attempts are counted in this cache.
CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": GRAFTWORK.redis_url,
        "KEY_PREFIX": "graftwork:web",
        "OPTIONS": {"socket_connect_timeout": 2, "socket_timeout": 2},
    }
}

ACCOUNT_ADAPTER = "controlplane.console.account.allauth_adapter.AccountAdapter"
ACCOUNT_USER_MODEL_USERNAME_FIELD = None
ACCOUNT_LOGIN_METHODS = {"email"}
ACCOUNT_SIGNUP_FIELDS = ["email*", "password1*"]
# An address is proven by an invitation's link or by the identity provider.
ACCOUNT_EMAIL_VERIFICATION = "none"
ACCOUNT_SESSION_REMEMBER = True
ACCOUNT_LOGOUT_REDIRECT_URL = LOGOUT_REDIRECT_URL
ACCOUNT_RATE_LIMITS = {
    "login": "60/m/ip",
    "login_failed": "10/m/ip,5/5m/key",
    "reauthenticate": "10/m/user",
    "reset_password": "10/m/ip,5/m/key",
    "reset_password_from_key": "20/m/ip",
    "change_password": "5/m/user",
}
MFA_ADAPTER = "controlplane.console.account.allauth_adapter.MfaAdapter"
MFA_SUPPORTED_TYPES = ["totp", "recovery_codes"]
MFA_TOTP_ISSUER = "Graftwork"
SOCIALACCOUNT_ADAPTER = "controlplane.console.account.allauth_adapter.SocialAdapter"
# The provider is the operator's own: who it says has verified an address is who has it here.
SOCIALACCOUNT_EMAIL_AUTHENTICATION = True
SOCIALACCOUNT_EMAIL_AUTHENTICATION_AUTO_CONNECT = True
SOCIALACCOUNT_PROVIDERS = {"openid_connect": {"OAUTH_PKCE_ENABLED": True, "APPS": GRAFTWORK.oidc_apps()}}

globals().update(GRAFTWORK.email())
DEFAULT_FROM_EMAIL = GRAFTWORK.email_from

LANGUAGE_CODE, TIME_ZONE, USE_TZ = GRAFTWORK.language, "UTC", True
LANGUAGES, LOCALE_PATHS = list(languages(LOCALES).items()), [LOCALES]
# Whitenoise serves straight from the finders: there is no collectstatic step that could be forgotten.
STATIC_URL = "/static/"
STATICFILES_DIRS = [ROOT / "static"]
# presets-*.json: the presets' measured figures, a file for each kind of processor; images copy them.
PRESET_RUN_FOLDER = ROOT / "benchmarks" / "results"
WHITENOISE_USE_FINDERS = True

# Uploads larger than 1 MiB go to temporary files; their size is bounded where they are stored.
FILE_UPLOAD_MAX_MEMORY_SIZE = 1 << 20
DATA_UPLOAD_MAX_NUMBER_FILES = 32

REST_FRAMEWORK: dict[str, Any] = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "controlplane.tenants.authentication.StaffTokenAuthentication",
        "controlplane.tenants.authentication.ApiKeyAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    # A view that does not state who may call it can be called by nobody.
    "DEFAULT_PERMISSION_CLASSES": ["controlplane.platform.http.permissions.Nobody"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["controlplane.platform.http.json_parser.StrictJSONParser"],
    "DEFAULT_PAGINATION_CLASS": "controlplane.platform.http.pagination.CursorPages",
    "DEFAULT_FILTER_BACKENDS": ["controlplane.platform.http.filters.StrictFilters"],
    "DEFAULT_THROTTLE_CLASSES": ["controlplane.platform.http.throttling.CallerThrottle"],
    "DEFAULT_SCHEMA_CLASS": "controlplane.platform.http.schema.ApiSchema",
    "EXCEPTION_HANDLER": "drf_standardized_errors.handler.exception_handler",
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
}
_ERRORS = ("400", "401", "403", "404", "409", "412", "415", "428", "429", "503")
DRF_STANDARDIZED_ERRORS = {
    "EXCEPTION_HANDLER_CLASS": "controlplane.platform.http.errors.ErrorHandler",
    "ALLOWED_ERROR_STATUS_CODES": _ERRORS,
    "ERROR_SCHEMAS": dict.fromkeys(
        _ERRORS, "controlplane.platform.http.error_schemas.ErrorResponseSerializer"
    ),
}
SPECTACULAR_SETTINGS: dict[str, Any] = {
    "TITLE": "Graftwork",
    "DESCRIPTION": "Register adapters, hold keys, read usage. Inference itself is the gateway's OpenAI API.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_PERMISSIONS": ["rest_framework.permissions.AllowAny"],
    "SCHEMA_PATH_PREFIX": r"/api/v[0-9]+",
    # The documentation page takes its scripts from this server, never from another host.
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "COMPONENT_SPLIT_REQUEST": True,
    "ENUM_NAME_OVERRIDES": {
        "TargetKindEnum": "controlplane.deployments.models.Target.Kind",
        "HostingEnum": "controlplane.deployments.models.Deployment.Hosting",
        "AdapterScopeEnum": "controlplane.deployments.models.Deployment.Scope",
        "DeploymentStatusEnum": "controlplane.deployments.models.Deployment.Status",
        "AdapterRuleStatusEnum": "controlplane.deployments.models.AdapterRule.Status",
        "WorkStatusEnum": "controlplane.optimization.models.Status",
        "WorkMachineEnum": "controlplane.optimization.models.Machine",
        "PlacementStatusEnum": "controlplane.deployments.models.Placement.Status",
        "StepOutcomeEnum": "controlplane.deployments.models.DeploymentStep.Outcome",
        "DeploymentRolloutStatusEnum": "controlplane.deployments.models.DeploymentRollout.Status",
        "RolloutStrategyEnum": "controlplane.deployments.models.DeploymentRollout.Strategy",
        "MetricEnum": ["concurrency", "invocations"],
        "AlarmMetricEnum": "controlplane.monitoring.models.Metric",
        "AlarmStateEnum": "controlplane.monitoring.models.State",
        "CopyKindEnum": "controlplane.deployments.models.Copy.Kind",
        "VersionStatusEnum": "controlplane.adapters.models.AdapterVersion.Status",
        "SourceCredentialKindEnum": "controlplane.artifacts.credentials.models.SourceCredential.Kind",
    },
}

CELERY_BROKER_URL = GRAFTWORK.redis_url
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_QUEUES, CELERY_TASK_ROUTES = task_queues.QUEUES, task_queues.ROUTES
CELERY_TASK_DEFAULT_QUEUE = task_queues.PROMPT
CELERY_TASK_ANNOTATIONS = task_queues.ANNOTATIONS
CELERY_TASK_SOFT_TIME_LIMIT = task_queues.DEFAULT_LIMIT_S
CELERY_TASK_TIME_LIMIT = task_queues.DEFAULT_LIMIT_S + task_queues.GRACE_S
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
# A publisher waits for the broker this long, not for minutes: beat repeats lost tasks.
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "socket_connect_timeout": 2,
    "socket_timeout": 30,
    # Seconds after which another worker gets the message of a vanished worker host. Longer than most tasks
    # may take; a task that runs twice finds its claim taken.
    "visibility_timeout": 7200,
}
CELERY_TASK_PUBLISH_RETRY_POLICY = {"max_retries": 1, "interval_start": 0.1, "interval_max": 0.1}
CELERY_BEAT_SCHEDULE_FILENAME = str(VAR / "celerybeat-schedule")
_EVERY_S = {
    "adapters.resume_validation": 20.0,
    "adapters.purge": 300.0,
    "deployments.scale": 1.0,
    "deployments.sweep": 2.0,
    "catalog.resume_digests": 60.0,
    "canaries.decide": 10.0,
    "canaries.judge": 5.0,
    "uploads.expire": 300.0,
    "tenants.tidy": 300.0,
    "idempotency.expire": 3600.0,
    "prompt_log.take": 2.0,
    "prompt_log.expire": 600.0,
    "webhooks.enqueue_due": 5.0,
    "webhooks.notify_due": 60.0,
    "webhooks.forget": 3600.0,
    "monitoring.evaluate_alarms": 15.0,
    "monitoring.notify_alarms": 60.0,
    "monitoring.sync_quarantines": 5.0,
    "monitoring.export_metrics": 60.0,
    "monitoring.forget": 3600.0,
    "operations.purge_tenants": 600.0,
    "members.send_invitations": 60.0,
    "sign_up.send_due": 60.0,
    "limits.tidy": 300.0,
    "optimization.sweep": 5.0,
    "optimization.collect": 1800.0,
    "metering.add_latencies": 30.0,
    "metering.replay_waiting": 60.0,
    "metering.look_at_hosting": 60.0,
    "billing.publish_budgets": 5.0,
    "billing.publish_rates": 30.0,
    "billing.post_usage": 300.0,
    "billing.render_due": 300.0,
    "billing.notify_budgets": 60.0,
}
# Each message expires when the next is due: after an outage, or behind a full queue, one run suffices.
CELERY_BEAT_SCHEDULE: dict[str, dict[str, Any]] = {
    task: {"task": task, "schedule": schedule(seconds), "options": {"expires": seconds}}
    for task, seconds in _EVERY_S.items()
}
# By then the previous UTC day is complete, except for late events.
CELERY_BEAT_SCHEDULE["metering.nightly"] = {
    "task": "metering.nightly",
    "schedule": crontab(hour="2", minute="40"),
}
# Runs after the check of the last days' sums.
CELERY_BEAT_SCHEDULE["billing.nightly"] = {
    "task": "billing.nightly",
    "schedule": crontab(hour="3", minute="20"),
}

UNFOLD = {
    "SITE_TITLE": "Graftwork staff",
    "SITE_HEADER": "Graftwork",
    "SITE_URL": "/",
    "STYLES": [lambda _: static("packages/admin.css")],
    "SCRIPTS": [lambda _: static("packages/admin.js")],
}

LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    # The fleet's page asks each copy every few seconds: a line for each call says nothing.
    "loggers": {"httpx": {"level": "WARNING"}},
    "root": {"handlers": ["stderr"], "level": "INFO"},
}
