"""Recorder: the callbacks of the loop that write metrics, checkpoints, status and the terminal. It
decides when to write; ludus/track knows how."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ludus.envs.backends.failures import can_restart
from ludus.errors import LudusError
from ludus.evals.evaluate import AbandonedError, EvalResult, evaluate_policy
from ludus.evals.evaluate import Progress as EvalProgress
from ludus.run.learners.replay import replay_files
from ludus.run.loop import Loop
from ludus.run.recording.messages import live_facts, start_messages, status_writer, with_rules
from ludus.run.recording.progress import Progress
from ludus.run.saving import Saver
from ludus.run.state import unpack
from ludus.secret_masking import hide, masked, masked_command
from ludus.settings.resolve import Config
from ludus.track.atomic_files import write_atomic
from ludus.track.callbacks import Callback, Callbacks
from ludus.track.checkpoint.reader import Loaded
from ludus.track.metrics.sinks import Copies
from ludus.track.metrics.writer import MetricWriter
from ludus.track.run_dir.csv_folder import place_csv
from ludus.track.run_dir.manifest import add_session, write_manifest
from ludus.track.run_dir.rundir import RunDir
from ludus.track.terminal import Header, Snapshot, make_display, plain_lines
from ludus.types import EpisodeEnd
from ludus.units import show_count, show_seconds

FIRST_SECONDS = 5.0  # before the first progress message of an evaluation, as in a run
_SHOWN = ("loss", "grad_norm", "q", "entropy", "approx_kl", "epsilon", "lr")


class Recorder:
    """Also the `run` argument of callbacks: step, updates, path, stop(reason), log(metrics)."""

    def __init__(
        self,
        cfg: Config,
        run: RunDir,
        loop: Loop,
        callbacks: Sequence[Callback],
        *,
        quiet: bool,
        command: list[str],
        exact: bool,
        replay_bytes: int,
    ) -> None:
        self.cfg, self.run, self.loop = cfg, run, loop
        self.exact, self.command = exact, masked_command(command)
        self.callbacks = Callbacks(callbacks)
        self.replay = replay_files(loop, cfg.run.save_replay, replay_bytes)
        self.saver = Saver(self)
        self.lineage: dict[str, Any] = {}
        self.csv_typed = True  # False: log.csv comes from the run's own config.yaml
        self._age = 0.0  # seconds of earlier sessions
        self._logged_at: int | None = None
        self._evaluated_at: int | None = None
        self.env_restarts = 0  # environments that failed and were made again
        self.warnings: list[str] = []  # to show after the start
        self._lost: list[str] = []  # warnings about callbacks that the resumed run lacks
        self._extra: dict[str, float] = {}  # metrics callbacks added
        self._learner: dict[str, float] = {}
        self._history: deque[float] = deque(maxlen=32)
        self.evaluation = ""
        self.progress = Progress(cfg, loop)
        self._shown: Snapshot | None = None
        self._progress_logged = 0.0  # session seconds when progress last went to log.txt
        header = Header(cfg.env.id, cfg.algo_name, cfg.run.seed, run.name)
        mode = "off" if quiet else cfg.log.terminal
        self.display = make_display(header, mode=mode, every=cfg.log.seconds)
        self.status = status_writer(cfg, run, loop.compute_info)
        self.opened = False  # the run's files are open
        self._set_hooks(loop)

    def _set_hooks(self, loop: Loop) -> None:
        hooks = loop.hooks
        hooks.episode, hooks.log, hooks.best = self._episode, self.log_line, self.saver.best
        hooks.checkpoint, hooks.evaluate = self.saver.checkpoint, self.evaluate
        hooks.tick.append(self._tick)
        hooks.changed = lambda part, mode: self.say(f"warning: {part} {mode}")
        loop.fleet.warn = lambda text: self._replaced("actor", text)
        if loop.roles is not None:
            loop.roles.warn = lambda text: self._replaced("replay", text)
        if any(type(c).on_update is not Callback.on_update for c in self.callbacks.members):
            loop.learner.on_update = self._updated

    @property
    def step(self) -> int:
        return self.loop.step

    @property
    def updates(self) -> int:
        return self.loop.learner.updates

    @property
    def path(self) -> Path:
        return self.run.path

    def stop(self, reason: str) -> None:
        self.loop.stop(reason)

    def log(self, values: Mapping[str, float]) -> None:
        """Add metrics to the next line of metrics.jsonl."""
        self._extra.update(values)

    # Begin and end.
    def restore(self, loaded: Loaded) -> None:
        """Restore all state. `open` truncates the run's files to the same step."""
        unpack(self.loop, loaded.tensors, loaded.state)
        self.replay.restore(loaded.replay, loaded.state["replay"])
        self.callbacks.load(loaded.state["callbacks"])
        gone = sorted(set(loaded.state["callbacks"]) - set(self.callbacks.state()))
        self._lost = [f"callback {name.partition(':')[2]} is not there any more" for name in gone]
        self._age, self._logged_at = loaded.state["seconds"], self.loop.step
        self.loop.refill = self.replay.missing
        self.saver.restore(loaded)
        for every in ("log_every", "checkpoint_every", "best_every", "eval_every"):
            getattr(self.loop, every).seen = self.loop.step

    def open(self, loaded: Loaded | None) -> None:
        """Open the run's files, truncated to the checkpoint that the run resumes from."""
        loop, cfg = self.loop, self.cfg
        self.warnings += self.saver.open(loaded)
        self.warnings += place_csv(self.run, cfg.log.csv, typed=self.csv_typed)
        self.writer = MetricWriter(
            self.run, seconds=self._age, rules=cfg.env.score_facts, say=self.say
        )
        self.opened = True
        self.warnings += [*loaded.warnings, *self._lost] if loaded else []
        # Without a checkpoint, remove all lines: a run killed before its first one wrote some.
        self.warnings += self.writer.truncate(loaded.state["offsets"] if loaded else {}, loop.step)
        try:
            purge = loop.step if loaded or self.run.tb.exists() else None
            self.board = Copies(self.run, masked(cfg.tree()), purge, self.say)
            write_atomic(self.run.config, cfg.to_yaml().encode())
            if loaded is None:
                sampled = {"drawn": loop.sampled_hparams} if loop.sampled_hparams else {}
                write_manifest(
                    self.run,
                    config=masked(cfg.tree()),
                    seed=cfg.run.seed,
                    command=self.command,
                    lineage=self.lineage,
                    facts=cfg.env.score_facts | sampled,
                )
            else:
                made_by = loaded.state.get("origin", {}).get("run")
                add_session(self.run, step=loop.step, command=self.command, run_id=made_by)
        except OSError as error:
            raise LudusError(
                "E301",
                f"cannot write the run directory: {error.strerror or error}",
                where=str(error.filename or self.path),
                fix="free some space, or choose another place with  --runs-dir DIR",
            ) from error

    def started(self, loaded: Loaded | None) -> None:
        loop, cfg = self.loop, self.cfg
        kind = "resume" if loaded else "start"
        self.writer.event(kind, loop.step, command=self.command, **self.saver.facts)
        for warning in self.warnings:
            self.say(f"warning: {warning}")
        remarks = self.replay.remarks(refill=loaded is not None and loaded.replay is None)
        for line in [*start_messages(cfg, self.path, loop), *remarks]:
            self.say(line)
        self.progress.begin()
        if not self.exact:
            self.say("not exact: checkpoints leave episodes alone, so a resumed run will differ")
        self.callbacks.on_start(self)
        self._beat("running")

    def finish(self, reason: str) -> None:
        self.saver.finish()
        if self.cfg.eval.episodes and reason == "finished":
            self.evaluate()
        self.callbacks.on_end(self)
        self.writer.event("end", self.loop.step, reason=reason)
        self.display.update(self._snapshot())
        self._beat("finished" if reason == "finished" else "stopped", reason=reason)
        took = show_seconds(self.loop.clock.session_seconds)
        self.writer.log(f"{reason} at step {show_count(self.loop.step)} after {took}")
        self.close()

    def failed(self, text: str, trace: str = "") -> None:
        self.writer.log(f"{text}\n{trace}".rstrip(), "error")
        self.writer.event("failed", self.loop.step, error=text)
        self._beat("failed", reason=text.splitlines()[0])
        self.close("failed")

    def close(self, state: str = "finished") -> None:
        self.display.close()
        self.board.close(state)
        self.writer.close()

    def say(self, text: str) -> None:
        """Write one line to log.txt and to the terminal."""
        text = hide(text)
        self.writer.log(text)
        self.display.message(text)

    def warn(self, text: str) -> None:
        """Write a warning unless `text` is empty."""
        if text:
            self.say(f"warning: {text}")
            self.writer.event("warning", self.loop.step, what=text)

    def note(self, text: str) -> None:
        """Write a note (not a warning) unless `text` is empty."""
        if text:
            self.say(f"note: {text}")
            self.writer.event("note", self.loop.step, what=text)

    def _progress(self, text: str) -> None:
        self.writer.log(text)
        self.display.progress(text)

    # Hooks of the loop.
    def _episode(self, step: int, episode: EpisodeEnd) -> None:
        if episode.error:
            self.env_restarts += 1
            self._env_replaced(step, episode)
        if episode.length or not episode.error:  # else no episode had started
            self.writer.episode(step, episode)
        self.callbacks.on_episode(self, episode)

    def _replaced(self, kind: str, text: str) -> None:
        if self._warn_of_replacement(text):
            self.writer.event(kind, self.step, what=text)

    def _env_replaced(self, step: int, episode: EpisodeEnd) -> None:
        """Warn of an environment that was made again; only log.txt gets the traceback."""
        head, _, trace = episode.error.partition("\n")
        text = f"{head}: made again"
        if self._warn_of_replacement(text):
            self.writer.event("environment", step, what=text, slot=episode.env)
            self.writer.log(trace)

    def _warn_of_replacement(self, text: str) -> bool:
        """Warn now if the run's files are open, else once they are. Return whether they are."""
        if self.opened:
            self.say(f"warning: {text}")
        else:
            self.warnings.append(text)
        return self.opened

    def _updated(self, metrics: Mapping[str, Tensor]) -> None:
        self._extra.update(self.callbacks.on_update(self, metrics))

    def log_line(self) -> None:
        """Write one line of metrics.jsonl; only times and rates depend on the clock."""
        loop, learner = self.loop, self.loop.learner
        if self._logged_at == loop.step:
            return  # a line and a checkpoint were due at once
        self._logged_at = loop.step
        speed = self.progress.measure()
        loop.gather()
        self._learner = learner.take_metrics()
        values: dict[str, Any] = {
            "performance/score": loop.scores.mean,
            "performance/length": loop.scores.mean_length,
            "performance/episodes": loop.scores.episodes,
            "performance/cut_episodes": loop.scores.cut,
            "performance/steps_per_second": speed[0],
            "learner/updates_per_second": speed[1],
            "learner/skipped_updates": learner.skipped,
        }
        loop.values.at(loop.step)
        for name, number in loop.values.numbers.items():
            area = "learner" if name.startswith("lr") else "agent"
            values[f"{area}/{name}"] = number
        values |= {f"learner/{k}": v for k, v in self._learner.items()}
        values |= {f"replay/{k}": v for k, v in self.replay.metrics().items()}
        values |= {f"actors/{k}": v for k, v in loop.actor_metrics().items()}
        if self.cfg.env.rebuilds:
            values["actors/env_restarts"] = self.env_restarts
        values |= {f"time/{k}": v for k, v in self.progress.times().items()}
        values |= self._extra
        self._extra = {}
        if loop.scores.mean is not None:
            self._history.append(loop.scores.mean)
        every_actor = {f"actors/{k}": v for k, v in loop.actors.record().items()}
        self.writer.metrics(loop.step, learner.updates, values | every_actor)
        self.board.write(loop.step, values)

    def evaluate(self) -> None:
        """Evaluate the current weights, while training waits."""
        start, loop = time.perf_counter(), self.loop
        if self._evaluated_at == loop.step:
            return  # one was due at the very end
        self._evaluated_at = loop.step
        title = f"evaluation at step {show_count(loop.step)}"
        result = self._scores(title)
        if result is None:
            self.say(f"{title} given up:  ludus eval {self.path}")
            return
        updates, spent = loop.learner.updates, time.perf_counter() - start
        self.write_evaluation(loop.step, updates, result.scores, result.lengths, spent)

    def _scores(self, title: str) -> EvalResult | None:
        """None if the run is leaving, or if an environment failed and env.on_error=restart."""
        cfg, loop, every = self.cfg, self.loop, self.cfg.log.seconds
        first, episodes = min(every, FIRST_SECONDS), cfg.eval.episodes
        try:
            with loop.clock.outside():
                return evaluate_policy(
                    loop.learner.algorithm,
                    loop.learner.net,
                    cfg.env,
                    episodes=episodes,
                    seed=cfg.run.seed,
                    epsilon=cfg.eval.epsilon,
                    progress=EvalProgress(
                        episodes, self._progress, title, every=every, first=first
                    ),
                    stopping=loop.is_leaving,
                    pulse=loop.pulse,
                )
        except AbandonedError:
            return None
        except LudusError as error:
            if not (cfg.env.rebuilds and can_restart(error)):
                raise
            self._progress(f"warning: {error.what} ({error.where})")
            return None

    def write_evaluation(
        self,
        step: int,
        updates: int,
        scores: list[float],
        lengths: list[int],
        spent: float,
        *,
        live: bool = False,
    ) -> None:
        """Write a result at the step of its weights; a live one is late."""
        at, rules, where = show_count(step), self.cfg.env.score_facts, "live" if live else ""
        facts = self.writer.evaluation(
            step, updates, scores, lengths, checkpoint=where, seconds=spent
        )
        score = f"{facts['mean']:.4g} ± {facts['std']:.3g} ({len(scores)} episodes)"
        if live:
            kind, area, self.evaluation = "live evaluation", "live_eval", f"{score} at {at}"
            self.writer.event("live evaluation", step, mean=facts["mean"], **rules)
        else:
            kind, area, self.evaluation = "evaluation", "eval", score
            self.writer.event("evaluation", step, mean=facts["mean"], **rules)
        self.board.write(step, {f"performance/{area}_{k}": v for k, v in facts.items()})
        self.say(with_rules(f"{kind} at step {at}: {score}", rules))

    def _tick(self) -> None:
        self.progress.tick()
        if self.display.due():
            self.display.update(self._snapshot())
        if self.loop.clock.session_seconds >= self._progress_logged + self.cfg.log.seconds:
            self._progress_logged = self.loop.clock.session_seconds
            self.writer.log("\n".join(plain_lines(self._snapshot())))
            self.warn(self.progress.takes_long())
        if self.status.due():
            self._beat("running")

    def show_stalled(self, stalled: bool) -> None:
        """Redraw the last Snapshot: the watchdog's thread must not read the run's state."""
        self.progress.stalled = stalled
        if stalled and self._shown is not None:
            self.display.update(replace(self._shown, waiting="stalled", split={}))

    def _beat(self, state: str, **more: Any) -> None:
        self.status.beat(
            state,
            self.loop.step,
            self.loop.learner.updates,
            score=self.loop.scores.mean,
            steps_per_second=self.progress.speed[0],
            capture_seconds=round(self.loop.capture_seconds, 3),
            **live_facts(self.loop),
            **more,
        )

    def _snapshot(self) -> Snapshot:
        shown = {**self._learner, **self.loop.values.numbers}
        self._shown = self.progress.snapshot(
            self.replay,
            history=tuple(self._history),
            evaluation=self.evaluation,
            metrics={k: shown[k] for k in _SHOWN if k in shown},
            checkpoint_seconds=self.saver.seconds_since(),
        )
        return self._shown
