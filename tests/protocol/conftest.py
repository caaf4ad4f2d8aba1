"""Puts this folder's helper on the path, and lets a busy machine take its time."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
