"""The tools of these tests lie beside them, so that the long run can use them as well."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
