"""A callback that kills its own process without warning, named on the command line."""

from __future__ import annotations

import os
import signal

from ludus.track.callbacks import Callback


class AtUpdate(Callback):
    """SIGKILL right after the optimizer step whose number is in KILL_AT_UPDATE."""

    def on_update(self, run, metrics):
        if run.updates == int(os.environ["KILL_AT_UPDATE"]):
            os.kill(os.getpid(), signal.SIGKILL)
