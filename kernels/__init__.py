"""Storage formats of K/V rows: bytes per row, pack, unpack; one oracle and several backends."""

from .backends import get_backend
from .codec import pack, unpack, warm_up
from .errors import FormatError, KernelError, NonFinite, Overflow, Refused, ShortBuffer, UnknownFormat
from .formats import (
    FORMATS,
    MAX_DIM,
    Element,
    Format,
    LayerSpec,
    format_by_name,
    format_by_tag,
    smallest_spec,
)
from .layout import Heads
from .report import BackendReport, backend_report

__all__ = [
    "FORMATS",
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
    "pack",
    "smallest_spec",
    "unpack",
    "warm_up",
]
