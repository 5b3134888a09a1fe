"""``python -m ddiag``."""

from __future__ import annotations

import sys

from ddiag.cli import main

if __name__ == "__main__":
    sys.exit(main())
