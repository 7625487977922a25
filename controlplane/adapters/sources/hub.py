"""hf://: repositories of the Hugging Face hub, or of what speaks its API, at one commit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Self
from urllib.parse import SplitResult, quote, unquote

import httpx2
from django.conf import settings
from huggingface_hub import HfApi, hf_hub_url, set_client_factory
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, validate_repo_id  # type: ignore[attr-defined]  # exported, though not by mypy's rule

from controlplane.adapters.sources.base import MissingFileError, bad_uri
from controlplane.adapters.sources.download import LONGEST_S, BodyStream
from controlplane.artifacts.credentials.models import SourceCredential
from controlplane.artifacts.credentials.services import credential_secret
from controlplane.artifacts.store import ByteStream
from controlplane.errors import RefusedError, UnavailableError
from controlplane.platform.http.outgoing import outgoing_client

_EXPECTED: Final = (
    "write a repository as hf://owner/name, hf://owner/name@revision or hf://owner/name@revision/folder"
)
_REVISION: Final = re.compile(r"[A-Za-z0-9._/-]{1,200}")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_FOLDER: Final = re.compile(r"(?:[A-Za-z0-9_-][A-Za-z0-9._-]*/)*(?:[A-Za-z0-9_-][A-Za-z0-9._-]*)?")


def _client(total: float = 60) -> httpx2.Client:
    return outgoing_client(total=total, follow_redirects=True, headers={"Accept-Encoding": "identity"})


# All that huggingface_hub asks in this process leaves by the guard. Its Xet transfers, which would not, are
# not used: files are streamed from their `resolve` address by a client that has longer, redirects to its CDN
# included.
set_client_factory(_client)


class HubSource:
    """A folder of a model repository, read with the tenant's token or with none."""

    archive = ""

    def __init__(self, parts: SplitResult, credential: SourceCredential | None) -> None:
        """Raises InvalidInputError: it reads like no repository."""
        owner, (name, _, rest) = parts.netloc, parts.path.lstrip("/").partition("/")
        if "@" in owner or parts.fragment or parts.query:
            raise bad_uri(parts.geturl(), _EXPECTED)
        name, _, revision = name.partition("@")
        self._repository, self._revision = f"{owner}/{name}", unquote(revision) or "main"
        self._folder, self._credential = unquote(rest).strip("/"), credential
        try:
            validate_repo_id(self._repository)
        except HFValidationError as error:
            raise bad_uri(parts.geturl(), _EXPECTED) from error
        odd = ".." in self._revision or _REVISION.fullmatch(self._revision) is None
        if odd or _FOLDER.fullmatch(self._folder) is None:
            raise bad_uri(parts.geturl(), _EXPECTED)

    @property
    def uri(self) -> str:
        folder = f"/{self._folder}" if self._folder else ""
        access = f"?credential={self._credential.name}" if self._credential else ""
        return f"hf://{self._repository}@{quote(self._revision, safe='')}{folder}{access}"

    def pinned(self) -> Self:
        if _COMMIT.fullmatch(self._revision):
            return self
        with self._answers():
            api = HfApi(endpoint=settings.GRAFTWORK.hub_endpoint, token=self._token())
            try:
                commit = api.model_info(self._repository, revision=self._revision, timeout=30).sha or ""
            except (ValueError, KeyError, TypeError) as error:
                raise UnavailableError("the hub's answer does not describe a model") from error
        if _COMMIT.fullmatch(commit) is None:
            raise RefusedError(f"the hub returned no commit for {self._repository}@{self._revision}")
        self._revision = commit
        return self

    @contextmanager
    def open(self, name: str) -> Iterator[ByteStream]:
        url = hf_hub_url(
            self._repository,
            f"{self._folder}/{name}" if self._folder else name,
            revision=self._revision,
            endpoint=settings.GRAFTWORK.hub_endpoint,
        )
        headers = build_hf_headers(token=self._token())
        with (
            self._answers(),
            _client(LONGEST_S) as client,
            client.stream("GET", url, headers=headers) as response,
        ):
            if response.status_code == 404 and response.headers.get("X-Error-Code") == "EntryNotFound":
                raise MissingFileError(name)
            hf_raise_for_status(response)
            yield BodyStream(response)

    def _token(self) -> str | bool:
        # False: never a token that this machine's own user has left in a file.
        return credential_secret(credential=self._credential) if self._credential else False

    @contextmanager
    def _answers(self) -> Iterator[None]:
        where = f"{self._repository}@{self._revision}"
        try:
            yield
        except GatedRepoError as error:
            raise RefusedError(
                f"{where} is gated: accept its terms, and name a credential that may read it"
            ) from error
        except RevisionNotFoundError as error:
            raise RefusedError(f"{self._repository} has no revision {self._revision!r}") from error
        except RepositoryNotFoundError as error:
            raise RefusedError(f"the hub has no {where}, or the credential may not read it") from error
        except HfHubHTTPError as error:
            status = error.response.status_code
            if status == 429 or status >= 500:
                raise UnavailableError(f"the hub returned status {status}; try again") from error
            raise RefusedError(f"the hub refused access to {where} with status {status}") from error
        except httpx2.HTTPError as error:
            raise UnavailableError(f"the hub does not answer, try again: {type(error).__name__}") from error
