"""The ASGI application that `python -m controlplane.web_server` serves."""

from __future__ import annotations

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
# Each request has a thread of its own, so that connections cannot stay with threads.
os.environ.setdefault("GRAFTWORK_DATABASE_CONNECTIONS", "32")
django_application = get_asgi_application()

# Imported once Django is set up.
from django.conf import settings  # noqa: E402

from controlplane import urls as urls  # noqa: E402  # with all views, before what is loaded is frozen
from controlplane.artifacts.uploads.authentication import UploadAuthentication  # noqa: E402
from controlplane.artifacts.uploads.bodies import UploadBodies  # noqa: E402
from controlplane.artifacts.uploads.file_names import MAX_ARCHIVE_BYTES  # noqa: E402
from controlplane.platform.http.body_limit import BodyLimit  # noqa: E402
from controlplane.platform.http.collector import CollectBetweenAnswers, heap_freeze  # noqa: E402
from controlplane.platform.http.concurrency import ConcurrencyLimit  # noqa: E402

application = CollectBetweenAnswers(
    BodyLimit(
        UploadAuthentication(UploadBodies(django_application, ConcurrencyLimit(django_application))),
        limit=settings.DATA_UPLOAD_MAX_MEMORY_SIZE,
        # The files, and what multipart form puts around them.
        upload_limit=MAX_ARCHIVE_BYTES + (1 << 20),
    )
)

heap_freeze()
