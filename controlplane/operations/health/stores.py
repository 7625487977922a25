"""Health checks of the database, Redis, the object store and the mail server."""

from __future__ import annotations

import os
import shutil
import socket
import time
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from django.conf import settings
from django.db import DatabaseError, connection, transaction
from django.utils.translation import gettext as _

from controlplane.artifacts.store import artifact_store
from controlplane.operations.health.base import Finding, Level
from controlplane.platform.task_signs import connection as redis_connection

_SLOW_S: Final = 0.5
_MAIL_S: Final = 2.0
_LITTLE: Final = 0.1
_FULL: Final = 0.03
_PROBE: Final = "health/nothing-lies-here"


def database() -> Finding:
    """Check the database by the request's own connection."""
    started = time.monotonic()
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            cursor.fetchone()
    except DatabaseError as error:
        text = _("The database refuses queries: %(error)s") % {"error": str(error).strip()[:300]}
        return Finding(
            Level.DOWN, text, _("Check the log, the disk and the connections of the database server.")
        )
    took = time.monotonic() - started
    name = "PostgreSQL" if connection.vendor == "postgresql" else "SQLite"
    text = _("%(name)s responded in %(ms).0f ms.") % {"name": name, "ms": max(1.0, took * 1000)}
    if took > _SLOW_S:
        return Finding(
            Level.WARN, text, _("Check for long transactions, a full disk or too few connections.")
        )
    return Finding(Level.OK, text)


def redis_server() -> Finding:
    """Check that Redis answers, can persist, and has free memory."""
    client = redis_connection(settings.GRAFTWORK.redis_url)
    started = time.monotonic()
    client.ping()
    took = time.monotonic() - started
    info = client.info()
    used, most = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    text = _("Redis responded in %(ms).0f ms and uses %(mb).0f MB.") % {
        "ms": max(1.0, took * 1000),
        "mb": used / 1e6,
    }
    if info.get("loading"):
        return Finding(Level.DOWN, _("Redis is loading its data from disk."), _("Wait until loading ends."))
    if "err" in (info.get("aof_last_write_status"), info.get("rdb_last_bgsave_status")):
        todo = _("Redis could not write to its disk: free disk space there, and check the Redis log.")
        return Finding(Level.WARN, text, todo)
    if most and used > most * (1 - _LITTLE):
        todo = _("Raise maxmemory before Redis rejects writes: it stores queues, routes and pending usage.")
        return Finding(Level.WARN, f"{text} {_('This is close to maxmemory.')}", todo)
    return Finding(Level.OK, text)


def object_store() -> Finding:
    """Check that the artifact store answers; for a local folder also its free space."""
    parts = urlsplit(settings.GRAFTWORK.artifact_store)
    if parts.scheme == "file":
        return disk(Path(unquote(parts.path)))
    artifact_store().size(_PROBE)
    return Finding(Level.OK, _("The bucket %(name)s is reachable.") % {"name": parts.netloc})


def disk(folder: Path) -> Finding:
    """Check that `folder`, or its nearest existing parent, is writable and has free space."""
    existing = next((path for path in (folder, *folder.parents) if path.exists()), Path("/"))
    if not os.access(existing, os.W_OK):
        text = _("%(folder)s is not writable.") % {"folder": existing}
        return Finding(
            Level.DOWN, text, _("Grant the web and worker processes write permission, or mount the folder.")
        )
    usage = shutil.disk_usage(existing)
    free = usage.free / usage.total
    text = _("%(gb).1f GB are free (%(share).0f %%).") % {"gb": usage.free / 1e9, "share": free * 100}
    todo = _("Free disk space, or move GRAFTWORK_ARTIFACT_STORE to a larger disk or to S3.")
    if free < _FULL:
        return Finding(Level.DOWN, text, todo)
    return Finding(Level.WARN, text, todo) if free < _LITTLE else Finding(Level.OK, text)


def mail() -> Finding:
    """Check that the mail server accepts connections; sends nothing."""
    url = urlsplit(settings.GRAFTWORK.email_url)
    if not url.scheme:
        todo = _("Set GRAFTWORK_EMAIL_URL to send invitations and warnings by email.")
        return Finding(Level.UNUSED, _("Emails are printed to the log."), todo)
    if url.scheme == "file":
        return Finding(Level.UNUSED, _("Emails are written to %(folder)s.") % {"folder": unquote(url.path)})
    host, port = settings.EMAIL_HOST, settings.EMAIL_PORT
    place = {"place": f"{host}:{port}"}
    try:
        with socket.create_connection((host, port), timeout=_MAIL_S) as line:
            greeting = b"220" if url.scheme == "smtps" else line.recv(200)
    except OSError as error:
        text = _("%(place)s cannot be reached: %(error)s") % {**place, "error": error}
        todo = _("Check the mail server and the network. Invitations are delayed until it is reachable.")
        return Finding(Level.DOWN, text, todo)
    if not greeting.startswith(b"220"):
        text = _("%(place)s does not send an SMTP greeting.") % place
        return Finding(Level.WARN, text, _("Check the port and the scheme of GRAFTWORK_EMAIL_URL."))
    return Finding(Level.OK, _("%(place)s is reachable.") % place)
