"""Loops over bytes, compiled."""

from __future__ import annotations

import ctypes
from typing import Any

from pionkv.protocol import batch
from pionkv.protocol.scanning import scan

_kept: list[Any] = []
"""What was compiled: the machine code goes with it."""


def compile_scan() -> batch.Scan:
    """`scanning.scan` as machine code, kept on disk; a call costs about 0.3 µs besides."""
    # It takes half a second to be imported.
    import numba

    # Two threads that use numba for the first time can wait for each other for ever if one of them begins
    # with `cfunc`: it takes two locks in the other order. After this nothing is left to be made under both.
    numba.njit(scan)
    signature = numba.types.int64(numba.types.CPointer(numba.types.uint8), numba.types.int64)
    compiled = numba.cfunc(signature, cache=True)(scan)
    _kept.append(compiled)
    # For a fraction of a microsecond the interpreter's lock is better kept.
    call: batch.Scan = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_char_p, ctypes.c_int64)(compiled.address)
    return call
