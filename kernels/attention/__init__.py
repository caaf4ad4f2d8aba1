"""Attention of queries over stored rows: a float64 oracle in numpy, and an engine on mlx.

Shapes are head-major as an mlx cache has them: queries `[H_q, M, D]`, keys and values `[H_kv, N, D]`. Query
head h attends with the key/value head `head_map[h]`. Scores are scaled by 1/sqrt(D), and the log-sum-exp
(LSE) that comes with an output is of the scaled scores: what an online softmax needs to merge two parts.
"""

from .engine import Engine, ResidentRows, load_engine
from .forms import (
    MAX_HEAD_DIM,
    MAX_HEADS,
    Attended,
    AttentionError,
    HeadMap,
    Query,
    Selector,
    Suffix,
    contiguous_map,
)
from .packed import PackedLayer

__all__ = [
    "MAX_HEADS",
    "MAX_HEAD_DIM",
    "Attended",
    "AttentionError",
    "Engine",
    "HeadMap",
    "PackedLayer",
    "Query",
    "ResidentRows",
    "Selector",
    "Suffix",
    "contiguous_map",
    "load_engine",
]
