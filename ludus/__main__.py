"""Run `ludus` as `python -m ludus`, without the current folder first on Python's path."""

import os
import sys

if not sys.flags.safe_path and sys.path[0] in ("", os.getcwd()):
    del sys.path[0]

from ludus.cli.main import main

main()
