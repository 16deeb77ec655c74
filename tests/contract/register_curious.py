"""Names `curious` for the command line (--import). No test imports it: the registry-driven tests
are about the algorithms of the package."""

import ludus
from tests.contract.curious import ENTRY

ludus.register(ENTRY)
