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
    from ludus.nets.custom_torso import register_torso as register_torso
    from ludus.registry import Entry as Entry
    from ludus.registry import register as register
    from ludus.reporting import report as report
    from ludus.settings.resolve import Config as Config
    from ludus.track.callbacks import Callback as Callback
    from ludus.track.callbacks import StopAt as StopAt

__version__ = "0.1.0"

_HOME = {
    "ludus.api": ("Run", "config", "evaluate", "load", "resume", "train"),
    "ludus.errors": ("LudusError",),
    "ludus.nets.custom_torso": ("register_torso",),
    "ludus.registry": ("Entry", "register"),
    "ludus.reporting": ("report",),
    "ludus.settings.resolve": ("Config",),
    "ludus.track.callbacks": ("Callback", "StopAt"),
}

__all__ = [*(name for names in _HOME.values() for name in names), "__version__"]


def __getattr__(name: str) -> "Any":
    for module, names in _HOME.items():
        if name in names:
            found = globals()[name] = getattr(importlib.import_module(module), name)
            return found
    raise AttributeError(f"module 'ludus' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
