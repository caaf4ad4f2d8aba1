"""Puts this folder's helper on the path, lets a busy machine take its time, and has batches parsed."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import settings
from pionkv.protocol import batch
from pionkv.protocol.scanning import scan

sys.path.insert(0, str(Path(__file__).parent))

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

batch.use(scan)
