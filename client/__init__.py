"""`PromptStore`, `PionPromptCache`, `TransformersCache`, `StoreClient`, and those for asyncio.

This imports neither mlx nor torch.
"""

from .async_prompt_cache import AsyncPionPromptCache
from .async_store import AsyncStoreClient
from .attend import AttendQueries
from .attention_seam import SeamMoved
from .claim import Turn
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
from .prefix_attention import PrefixAttention
from .prompt_cache import PionPromptCache
from .prompt_store import PromptStore
from .requests import Found, SessionInfo
from .store_client import StoreClient
from .tls import Tls
from .transformers_cache import TransformersCache

__all__ = [
    "AsyncPionPromptCache",
    "AsyncStoreClient",
    "AttendQueries",
    "BadReply",
    "ConnectionLost",
    "Found",
    "NotAsked",
    "NotStored",
    "OtherTokens",
    "PionPromptCache",
    "PrefixAttention",
    "PromptStore",
    "SeamMoved",
    "ServerRefused",
    "SessionInfo",
    "StoreClient",
    "StoreError",
    "TimedOut",
    "Tls",
    "TransformersCache",
    "Turn",
    "Unavailable",
    "UnsupportedModel",
]
