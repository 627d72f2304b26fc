"""``python -m hookline``: the command line, also where its script is not on the path."""

from __future__ import annotations

import sys

from hookline.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
