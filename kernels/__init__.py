"""Storage formats of K/V rows: bytes per row, pack, unpack; one oracle and several backends."""

from .backends import get_backend
from .codec import pack, unpack, warm_up
from .errors import FormatError, KernelError, NonFinite, Overflow, Refused, ShortBuffer, UnknownFormat
from .formats import (
    FORMATS,
    GROUP_FORMATS,
    LAYER_FORMATS,
    MAX_DIM,
    Element,
    Format,
    LayerSpec,
    format_by_name,
    format_by_tag,
    keys_format,
    smallest_spec,
)
from .layout import Heads
from .report import BackendReport, backend_report

__all__ = [
    "FORMATS",
    "GROUP_FORMATS",
    "LAYER_FORMATS",
    "MAX_DIM",
    "BackendReport",
    "Element",
    "Format",
    "FormatError",
    "Heads",
    "KernelError",
    "LayerSpec",
    "NonFinite",
    "Overflow",
    "Refused",
    "ShortBuffer",
    "UnknownFormat",
    "backend_report",
    "format_by_name",
    "format_by_tag",
    "get_backend",
    "keys_format",
    "pack",
    "smallest_spec",
    "unpack",
    "warm_up",
]
