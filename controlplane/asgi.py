"""What the web server runs: `granian --interface asgi controlplane.asgi:application`."""

from __future__ import annotations

import gc
import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
# Each request has a thread of its own, so that connections cannot stay with threads.
os.environ.setdefault("GRAFTWORK_DATABASE_CONNECTIONS", "32")
django_application = get_asgi_application()

# Imported once Django is set up.
from django.conf import settings  # noqa: E402

from controlplane import urls as urls  # noqa: E402  # with all views, before what is loaded is frozen
from controlplane.http.body_limit import BodyLimit  # noqa: E402
from controlplane.uploads.bodies import UploadBodies  # noqa: E402
from controlplane.uploads.file_names import MAX_ARCHIVE_BYTES  # noqa: E402

application = BodyLimit(
    UploadBodies(django_application),
    limit=settings.DATA_UPLOAD_MAX_MEMORY_SIZE,
    # The files, and what multipart form puts around them.
    upload_limit=MAX_ARCHIVE_BYTES + (1 << 20),
)

# A page of a list makes enough objects to have the collector look at the whole heap every tenth request, for
# 0.2 s. What is loaded by now stays for ever; with it out of sight, and looks rarer, such a page's CPU time
# at the 95th percentile went from 216 to 63 ms.
gc.collect()
gc.freeze()
gc.set_threshold(50_000, 20, 20)
