"""`PromptStore` and `PionPromptCache` for mlx-lm, `StoreClient` for everything else. This imports no mlx."""

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
from .requests import SessionInfo
from .store_client import StoreClient
from .tls import Tls

__all__ = [
    "BadReply",
    "ConnectionLost",
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
