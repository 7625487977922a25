"""The login session: from the environment, else from a file that only its owner can read."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from graftwork.client import KEY_VARIABLE, URL_VARIABLE, Client
from graftwork.errors import ConfigurationError

CONFIG_VARIABLE: Final = "GRAFTWORK_CLI_CONFIG"
GATEWAY_VARIABLE: Final = "GRAFTWORK_CLI_GATEWAY_URL"


@dataclass(frozen=True, slots=True)
class Session:
    """The addresses and the API key of a login."""

    url: str = ""
    api_key: str = ""
    gateway_url: str = ""

    def save(self) -> Path:
        """Writes the session file so that at no moment others can read it.

        Raises:
            ConfigurationError: the file cannot be written; no partial file is left.
        """
        path = config_path()
        fresh = path.with_name(f".{path.name or 'session'}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            fresh.unlink(missing_ok=True)
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                json.dump(asdict(self), file)
            fresh.replace(path)
        except OSError as error:
            raise _unusable(path, error) from error
        finally:
            with suppress(OSError):
                fresh.unlink(missing_ok=True)  # it holds the key
        return path


def config_path() -> Path:
    """Returns GRAFTWORK_CLI_CONFIG, else `graftwork/session.json` in the user's configuration folder."""
    if named := os.environ.get(CONFIG_VARIABLE):
        return Path(named)
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "graftwork" / "session.json"


def session() -> Session:
    """Returns the current session; the environment takes precedence over the file.

    Raises:
        ConfigurationError: the file is not a session file, or other users can read it.
    """
    stored = _stored()
    return Session(
        os.environ.get(URL_VARIABLE) or stored.url,
        os.environ.get(KEY_VARIABLE) or stored.api_key,
        os.environ.get(GATEWAY_VARIABLE) or stored.gateway_url,
    )


def client() -> Client:
    """Creates a client from the session. Raises ConfigurationError if nobody is logged in."""
    found = session()
    unfinished = config_path().with_name("uploads.json")
    return Client(found.url, found.api_key, gateway_url=found.gateway_url or None, unfinished=unfinished)


def forget() -> bool:
    """Deletes the stored session; True if there was one. Raises ConfigurationError."""
    path = config_path()
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _unusable(path, error) from error
    return True


def _stored() -> Session:
    path = config_path()
    try:
        if os.name == "posix" and path.is_file() and path.stat().st_mode & 0o077:
            raise ConfigurationError(f"other users can read {path}, which holds a key: chmod 600 {path}")
        return Session(**json.loads(path.read_text()))
    except FileNotFoundError:
        return Session()
    except OSError as error:
        raise _unusable(path, error) from error
    except (ValueError, TypeError) as error:
        raise ConfigurationError(
            f"{path} is not a session file ({error}): log in again with `graftwork login`"
        ) from error


def _unusable(path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"the session cannot be stored in {path} ({error.strerror}): set {CONFIG_VARIABLE} to a writable file"
    )
