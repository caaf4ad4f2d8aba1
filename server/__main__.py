"""`python -m pionkv.server` is `pionkv serve`."""

import sys

from .cli import build

build(["serve"])(["serve", *sys.argv[1:]], prog_name="python -m pionkv.server")
