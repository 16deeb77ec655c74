"""A user's own callback, named on the command line."""

from ludus.track.callbacks import Callback


class StopAtOnce(Callback):
    def on_start(self, run):
        run.stop("at once")
