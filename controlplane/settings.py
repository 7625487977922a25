"""Django's settings. What an operator may change comes from `Environment`; the rest is fixed here."""

from __future__ import annotations

import os
from typing import Any

from celery.schedules import schedule

from controlplane.environment import ROOT, VAR, Environment

GRAFTWORK = Environment.from_env(os.environ)

SECRET_KEY = GRAFTWORK.secret_key
DEBUG = GRAFTWORK.debug
ALLOWED_HOSTS = list(GRAFTWORK.allowed_hosts)
CSRF_TRUSTED_ORIGINS = [GRAFTWORK.web_url]
_HTTPS = GRAFTWORK.web_url.startswith("https://")
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = _HTTPS
SESSION_COOKIE_NAME, CSRF_COOKIE_NAME = "graftwork_session", "graftwork_csrf"
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
    "rest_framework",
    "drf_standardized_errors",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "controlplane.routes",
    "controlplane.tenants",
    "controlplane.catalog",
    "controlplane.deployments",
    "controlplane.adapters",
    "controlplane.metering",
    "controlplane.billing",
    "controlplane.console",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    # Pages alone: whitenoise hands out files compressed already. Django pads against BREACH.
    "django.middleware.gzip.GZipMiddleware",
    "controlplane.console.csp.ContentSecurityPolicyMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
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
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in ("MinimumLengthValidator", "CommonPasswordValidator", "NumericPasswordValidator")
]

LANGUAGE_CODE, TIME_ZONE, USE_TZ, USE_I18N = "en-us", "UTC", True, False
# Whitenoise serves straight from the finders: there is no collectstatic step that could be forgotten.
STATIC_URL = "/static/"
STATICFILES_DIRS = [ROOT / "static"]
WHITENOISE_USE_FINDERS = True

# Uploads larger than 1 MiB go to temporary files; their size is bounded where they are stored.
FILE_UPLOAD_MAX_MEMORY_SIZE = 1 << 20
DATA_UPLOAD_MAX_NUMBER_FILES = 8

REST_FRAMEWORK: dict[str, Any] = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "controlplane.tenants.authentication.ApiKeyAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    # A view that does not state who may call it can be called by nobody.
    "DEFAULT_PERMISSION_CLASSES": ["controlplane.http.permissions.Nobody"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_PAGINATION_CLASS": "controlplane.http.pagination.Pages",
    "DEFAULT_SCHEMA_CLASS": "drf_standardized_errors.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "drf_standardized_errors.handler.exception_handler",
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
}
DRF_STANDARDIZED_ERRORS = {
    "EXCEPTION_HANDLER_CLASS": "controlplane.http.errors.ErrorHandler",
    "ALLOWED_ERROR_STATUS_CODES": ["400", "401", "403", "404", "409", "415", "503"],
    "ERROR_SCHEMAS": {
        "409": "controlplane.http.error_schemas.ErrorResponse409Serializer",
        "503": "controlplane.http.error_schemas.ErrorResponse503Serializer",
    },
}
SPECTACULAR_SETTINGS: dict[str, Any] = {
    "TITLE": "Graftwork",
    "DESCRIPTION": "Register adapters, hold keys, read usage. Inference itself is the gateway's OpenAI API.",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_PERMISSIONS": ["rest_framework.permissions.AllowAny"],
    "SCHEMA_PATH_PREFIX": r"/api/v[0-9]+",
    # The documentation page takes its scripts from this server, never from another host.
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "COMPONENT_SPLIT_REQUEST": True,
    "ENUM_NAME_OVERRIDES": {
        "ValidationErrorEnum": "drf_standardized_errors.openapi_serializers.ValidationErrorEnum.choices",
        "ClientErrorEnum": "drf_standardized_errors.openapi_serializers.ClientErrorEnum.choices",
        "ServerErrorEnum": "drf_standardized_errors.openapi_serializers.ServerErrorEnum.choices",
        "ErrorCode401Enum": "drf_standardized_errors.openapi_serializers.ErrorCode401Enum.choices",
        "ErrorCode403Enum": "drf_standardized_errors.openapi_serializers.ErrorCode403Enum.choices",
        "ErrorCode404Enum": "drf_standardized_errors.openapi_serializers.ErrorCode404Enum.choices",
        "ErrorCode415Enum": "drf_standardized_errors.openapi_serializers.ErrorCode415Enum.choices",
    },
    "POSTPROCESSING_HOOKS": ["drf_standardized_errors.openapi_hooks.postprocess_schema_enums"],
}

CELERY_BROKER_URL = GRAFTWORK.redis_url
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_DEFAULT_QUEUE = "graftwork"
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
# A publisher waits for the broker this long, not for minutes: beat repeats what could not be enqueued.
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "socket_connect_timeout": 2,
    "socket_timeout": 30,
    "visibility_timeout": 1800,
}
CELERY_TASK_PUBLISH_RETRY_POLICY = {"max_retries": 1, "interval_start": 0.1, "interval_max": 0.1}
CELERY_BEAT_SCHEDULE_FILENAME = str(VAR / "celerybeat-schedule")
CELERY_BEAT_SCHEDULE = {
    "adapters.resume_validation": {"task": "adapters.resume_validation", "schedule": schedule(20.0)},
    "tenants.tidy": {"task": "tenants.tidy", "schedule": schedule(300.0)},
}

UNFOLD = {
    "SITE_TITLE": "Graftwork staff",
    "SITE_HEADER": "Graftwork",
    "SITE_URL": "/",
}

LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": "INFO"},
}
