"""Who takes pictures of a run's last frames: the first actor, where log.screenshots asks."""

from __future__ import annotations

from ludus.envs.render.screenshots import Camera
from ludus.settings.resolve import Config
from ludus.track.run_dir.rundir import RunDir


def camera_of(cfg: Config, run: RunDir, actor: int = 0) -> Camera | None:
    """For one of the actors; None for most."""
    every = cfg.log.screenshots
    return Camera(run.screenshots, every) if every and actor == 0 else None
