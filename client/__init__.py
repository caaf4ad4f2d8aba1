"""`PromptStore` and `PionPromptCache` for mlx-lm, `StoreClient` for everything else, and both for asyncio.

This imports no mlx.
"""

from .async_prompt_cache import AsyncPionPromptCache
from .async_store import AsyncStoreClient
from .errors import (
    BadReply,
    ConnectionLost,
    NotAsked,
    NotStored,
    OtherTokens,
    ServerRefused,
    StoreError,
    TimedOut,
    Unavailable,
    UnsupportedModel,
)
from .prompt_cache import PionPromptCache
from .prompt_store import PromptStore
from .requests import Found, SessionInfo
from .store_client import StoreClient
from .tls import Tls

__all__ = [
    "AsyncPionPromptCache",
    "AsyncStoreClient",
    "BadReply",
    "ConnectionLost",
    "Found",
    "NotAsked",
    "NotStored",
    "OtherTokens",
    "PionPromptCache",
    "PromptStore",
    "ServerRefused",
    "SessionInfo",
    "StoreClient",
    "StoreError",
    "TimedOut",
    "Tls",
    "Unavailable",
    "UnsupportedModel",
]
