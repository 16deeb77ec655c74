"""Ludus: deep reinforcement learning where an algorithm is one file. See README.md.

Importing the package is cheap: the names below are imported on first use.
"""

# Import only modules that Python has already loaded: under `python -m ludus` the current folder is
# still first on the path, until __main__.py removes it.
import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ludus.api import Run as Run
    from ludus.api import config as config
    from ludus.api import evaluate as evaluate
    from ludus.api import load as load
    from ludus.api import resume as resume
    from ludus.api import train as train
    from ludus.errors import LudusError as LudusError
    from ludus.nets.torsos import register_torso as register_torso
    from ludus.registry import Entry as Entry
    from ludus.registry import register as register
    from ludus.reporting import report as report
    from ludus.settings.resolve import Config as Config
    from ludus.track.callbacks import Callback as Callback
    from ludus.track.callbacks import StopAt as StopAt

__version__ = "0.1.0"

_HOME = {
    "Run": "ludus.api",
    "config": "ludus.api",
    "evaluate": "ludus.api",
    "load": "ludus.api",
    "report": "ludus.reporting",
    "resume": "ludus.api",
    "train": "ludus.api",
    "Config": "ludus.settings.resolve",
    "LudusError": "ludus.errors",
    "register_torso": "ludus.nets.torsos",
    "Entry": "ludus.registry",
    "register": "ludus.registry",
    "Callback": "ludus.track.callbacks",
    "StopAt": "ludus.track.callbacks",
}

__all__ = [*_HOME, "__version__"]


def __getattr__(name: str) -> "Any":
    if name not in _HOME:
        raise AttributeError(f"module 'ludus' has no attribute {name!r}")
    found = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
