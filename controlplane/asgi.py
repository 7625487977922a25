"""What the web server runs: `granian --interface asgi controlplane.asgi:application`."""

from __future__ import annotations

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
django_application = get_asgi_application()

# Imported once Django is set up.
from django.conf import settings  # noqa: E402

from controlplane.adapters.services import FILE_LIMITS  # noqa: E402
from controlplane.http.body_limit import BodyLimit  # noqa: E402

application = BodyLimit(
    django_application,
    limit=settings.DATA_UPLOAD_MAX_MEMORY_SIZE,
    # The files, and what multipart form puts around them.
    upload_limit=sum(FILE_LIMITS.values()) + (1 << 20),
)
