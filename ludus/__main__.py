"""`python -m ludus` is `ludus`: without the current folder, which Python puts first on its path."""

import os
import sys

if not sys.flags.safe_path and sys.path[0] in ("", os.getcwd()):
    del sys.path[0]

from ludus.cli.main import main

main()
