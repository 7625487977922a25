"""Prompt sets: JSONL files that are validated as a whole and stored by content digest."""

from __future__ import annotations

import hashlib
import json
from io import BytesIO
from typing import Any, Final

from django.db import transaction

from contracts import strict_json
from controlplane.artifacts.store import ByteStream, artifact_store
from controlplane.deployments.journal import actor_name
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.optimization.models import ComparisonRun, PromptSet
from controlplane.platform.audit.services import audit_record
from controlplane.platform.audit.snapshot import snapshot

MOST_BYTES: Final = 32 << 20
MOST_LINES: Final = 100_000
_MOST_LINE: Final = 1 << 20
_SHOWN_FAULTS: Final = 5
_ROLES: Final = ("system", "developer", "user", "assistant", "tool")


def prompts_create(*, stream: ByteStream, name: str = "") -> PromptSet:
    """Store a JSONL file as a prompt set; the same content again returns the existing set.

    Each line is an object with one of `text` (calibration), `prompt` (a text) and `messages` (a chat), and
    optionally the `expected` answer, a text.

    Raises:
        InvalidInputError: names the malformed lines by number.
        UnavailableError: the store does not answer.
    """
    data = stream.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise InvalidInputError(f"a prompt set is at most {MOST_BYTES >> 20} MiB", field="file")
    lines = _lines(data)
    digest = hashlib.sha256(data).hexdigest()
    # The file comes before the row: if this process dies in between, the next upload reuses the file.
    _store(digest, data)
    with transaction.atomic():
        prompts, made = PromptSet.objects.get_or_create(
            pk=digest,
            defaults={
                "name": name.strip()[:100] or digest[:12],
                "lines": lines,
                "size": len(data),
                "created_by": actor_name(),
            },
        )
        if made:
            audit_record(tenant="", action="prompt_set.create", target=prompts, after=snapshot(prompts))
    return prompts


@transaction.atomic
def prompts_remove(*, prompts: PromptSet) -> None:
    """Remove a prompt set and its file.

    Raises:
        ConflictError: a job or a comparison refers to it, or it comes with Graftwork.
    """
    row = PromptSet.objects.select_for_update().get(pk=prompts.pk)
    if row.bundled is not None:
        raise ConflictError(f"{row.name} comes with Graftwork and cannot be removed")
    if _is_used(row):
        raise ConflictError(f"jobs or comparisons were made with {row.name}: remove those first")
    audit_record(tenant="", action="prompt_set.remove", target=row, before=snapshot(row))
    row.delete()
    transaction.on_commit(lambda: _discard(prompts.pk))


def _is_used(row: PromptSet) -> bool:
    users = (row.optimizationjobs, row.comparisonruns, row.comparisons_by_texts, row.assessments)
    if any(rows.exists() for rows in users):
        return True
    all_settings = ComparisonRun.objects.filter(settings__has_key="adapters").values_list(
        "settings", flat=True
    )
    return any(item["prompts"] == row.pk for settings in all_settings for item in settings["adapters"])


def prompts_key(sha256: str) -> str:
    """Return the file's key in the store."""
    return f"prompt-sets/{sha256}/prompts.jsonl"


def prompts_read(*, prompts: PromptSet) -> bytes:
    """Read the prompt set's file; that of a bundled set is part of the installation.

    Raises:
        UnavailableError: the store does not answer.
        InvalidInputError: the stored file does not match its digest.
    """
    if (bundled := prompts.bundled) is not None:
        data = bundled.path.read_bytes()
    else:
        with artifact_store().open(prompts_key(prompts.pk)) as stream:
            data = stream.read(MOST_BYTES + 1)
    if hashlib.sha256(data).hexdigest() != prompts.pk:
        raise InvalidInputError(f"the store's file of prompt set {prompts.name} was changed: upload it again")
    return data


def line_fault(line: bytes) -> str:
    """Return the fault of one line as text, or "" for a valid one."""
    if len(line) > _MOST_LINE:
        return f"is longer than {_MOST_LINE >> 20} MiB"
    try:
        value: Any = strict_json.loads(line.decode())
    except UnicodeDecodeError as error:
        return f"is not UTF-8 (byte {error.start})"
    except json.JSONDecodeError as error:  # its own text counts lines within this one line: leave that out
        return f"is not JSON: {error.msg} at column {error.colno}"
    except (ValueError, RecursionError) as error:
        return f"is not JSON: {error}"
    if not isinstance(value, dict):
        return f"must be an object, got {type(value).__name__}"
    if sum(key in value for key in ("text", "prompt", "messages")) != 1:
        return "needs one of text, prompt and messages"
    for key in ("text", "prompt", "expected"):
        if key in value and not (isinstance(value[key], str) and value[key].strip()):
            return f"{key} must be a non-empty string"
    most = value.get("max_tokens")
    if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
        return "max_tokens must be an integer of at least 1"
    return _messages_fault(value["messages"]) if "messages" in value else ""


def _messages_fault(messages: Any) -> str:
    if not isinstance(messages, list) or not messages:
        return "messages must be a non-empty list"
    for message in messages:
        fine = isinstance(message, dict) and all(
            isinstance(message.get(key), str) for key in ("role", "content")
        )
        if not fine:
            return "each message must be an object with the strings role and content"
        if message["role"] not in _ROLES:
            return f"each message's role is one of {', '.join(_ROLES)}"
    return ""


def _lines(data: bytes) -> int:
    """Count the non-empty lines. Raises InvalidInputError naming the malformed ones."""
    count, faults = 0, list[str]()
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        count += 1
        if fault := line_fault(line):
            faults.append(f"line {number}: {fault}")
    if faults:
        more = f" (and {len(faults) - _SHOWN_FAULTS} more lines)" if len(faults) > _SHOWN_FAULTS else ""
        raise InvalidInputError("; ".join(faults[:_SHOWN_FAULTS]) + more, field="file")
    if not 1 <= count <= MOST_LINES:
        raise InvalidInputError(f"a prompt set has 1 to {MOST_LINES} lines, got {count}", field="file")
    return count


def _store(digest: str, data: bytes) -> None:
    store, key = artifact_store(), prompts_key(digest)
    if store.size(key) == len(data):
        with store.open(key) as stream:
            if stream.read(MOST_BYTES + 1) == data:
                return
    # The stored file is incomplete or damaged: replace it.
    store.remove_file(key)
    try:
        store.put(key, BytesIO(data), limit=MOST_BYTES)
    except FileExistsError as error:
        raise ConflictError("the same prompt set is being uploaded: try again") from error


def _discard(digest: str) -> None:
    if not PromptSet.objects.filter(pk=digest).exists():
        artifact_store().remove(f"prompt-sets/{digest}")
