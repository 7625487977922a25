"""The typed client of Graftwork's REST API.

with Client("https://graftwork.example", api_key="gw_...") as client:
    client.adapters.push("./support-bot", name="support-bot", base_model="llama-3.1-8b")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from graftwork.errors import ApiError as ApiError
from graftwork.errors import AuthenticationError as AuthenticationError
from graftwork.errors import ChangedError as ChangedError
from graftwork.errors import ConfigurationError as ConfigurationError
from graftwork.errors import ConflictError as ConflictError
from graftwork.errors import ConnectionFailedError as ConnectionFailedError
from graftwork.errors import GraftworkError as GraftworkError
from graftwork.errors import InvalidRequestError as InvalidRequestError
from graftwork.errors import NotFoundError as NotFoundError
from graftwork.errors import PermissionDeniedError as PermissionDeniedError
from graftwork.errors import RateLimitedError as RateLimitedError
from graftwork.errors import RefusedError as RefusedError
from graftwork.errors import ServerError as ServerError
from graftwork.models import Adapter as Adapter
from graftwork.models import Alias as Alias
from graftwork.models import Balance as Balance
from graftwork.models import CreditNote as CreditNote
from graftwork.models import Identity as Identity
from graftwork.models import Invoice as Invoice
from graftwork.models import Key as Key
from graftwork.models import NewKey as NewKey
from graftwork.models import UsageReport as UsageReport
from graftwork.models import Version as Version

if TYPE_CHECKING:
    from graftwork.chat import ChatStream as ChatStream
    from graftwork.client import Client as Client

_HTTP: Final = {"ChatStream": "graftwork.chat", "Client": "graftwork.client"}


def __getattr__(name: str) -> Any:
    """Import what needs httpx at its first use, so that the command line decides how httpx is loaded."""
    if name not in _HTTP:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HTTP[name]), name)
