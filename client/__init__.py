"""`PionPromptCache` for mlx-lm, and `StoreClient` for everything else. Importing this imports no mlx."""

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
from .requests import SessionInfo
from .store_client import StoreClient

__all__ = [
    "BadReply",
    "ConnectionLost",
    "NotAsked",
    "NotStored",
    "OtherTokens",
    "PionPromptCache",
    "ServerRefused",
    "SessionInfo",
    "StoreClient",
    "StoreError",
    "TimedOut",
    "Unavailable",
    "UnsupportedModel",
]
