"""``python -m ddiag.capture.native build``."""

from __future__ import annotations

import sys

from ddiag.capture.native.build import main

arguments = sys.argv[1:]
if arguments[:1] == ["build"]:
    arguments = arguments[1:]
raise SystemExit(main(arguments))
