"""TensorBoard files, read back with TensorBoard's own reader."""

import subprocess
import sys

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ludus.envs.render.screenshots import png
from ludus.track.metrics.sinks import Copies
from ludus.track.metrics.tensorboard import Board, board_tag
from ludus.track.run_dir.rundir import RunDir


def scalars(folder):
    reader = EventAccumulator(str(folder)).Reload()
    return {
        tag: [(e.step, round(e.value, 5)) for e in reader.Scalars(tag)]
        for tag in reader.Tags()["scalars"]
    }


@pytest.mark.accept(130)
def test_groups_performance_agent_learner_are_read_back(tmp_path):
    board = Board(tmp_path)
    for step in (10, 20):
        board.write(
            step,
            {
                "performance/return": 1.5 * step,
                "length": 7,
                "episodes": step / 10,
                "steps_per_second": 100.0,
                "epsilon": 0.1,
                "q_mean": 2.0,
                "loss": 0.5,
                "value_loss": 0.25,
                "grad_norm": 3.0,
                "lr": 1e-3,
                "text": "ignored",
                "nan": float("nan"),
            },
        )
    board.close()
    found = scalars(tmp_path)
    assert set(found) == {
        "performance/return",
        "performance/length",
        "performance/episodes",
        "performance/steps_per_second",
        "agent/epsilon",
        "agent/q_mean",
        "learner/loss",
        "learner/value_loss",
        "learner/grad_norm",
        "learner/lr",
    }
    assert found["performance/return"] == [(10, 15.0), (20, 30.0)]


def test_the_tag_names_the_run_and_cannot_leave_the_folder(tmp_path):
    board = Board(tmp_path / "tb", tag="../night 1")
    board.write(1, {"loss": 1.0})
    board.close()
    (place,) = (tmp_path / "tb").iterdir()
    assert place.name == "night-1"
    assert scalars(place) == {"learner/loss": [(1, 1.0)]}


def test_switched_off_it_writes_nothing(tmp_path):
    board = Board(tmp_path / "tb", enabled=False)
    board.write(1, {"loss": 1.0})
    board.flush()
    board.close()
    assert not (tmp_path / "tb").exists()


def test_resume_hides_what_came_after_the_checkpoint(tmp_path):
    board = Board(tmp_path)
    for step in (1, 2, 3):
        board.write(step, {"loss": float(step)})
    board.flush()
    board.close()
    board = Board(tmp_path, purge_step=2)
    board.write(2, {"loss": 20.0})
    board.close()
    assert scalars(tmp_path)["learner/loss"] == [(1, 1.0), (2, 20.0)]


def test_a_metric_has_one_group():
    assert board_tag("eval/mean") == "performance/eval/mean"
    assert board_tag("agent/q") == "agent/q"
    assert board_tag("entropy_loss") == "learner/entropy_loss"
    assert board_tag("time/env") == "performance/time/env"


def test_neither_torch_nor_tensorflow_is_imported(tmp_path):
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from ludus.track.metrics.tensorboard import Board\n"
        "Board(Path(sys.argv[1])).close()\n"
        "print([m for m in ('torch', 'tensorflow') if m in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == "[]", done.stderr


def _png(folder, name, cut=None):
    folder.mkdir(exist_ok=True)
    data = png(np.full((300, 4, 3), 7, np.uint8))
    (folder / name).write_bytes(data[:cut])
    return data


def test_pictures_of_last_states_are_shown_once_each(tmp_path):
    run = RunDir(tmp_path)
    _png(run.screenshots, "000001-score0.png")  # of an earlier session, and shown by it
    log = {"tensorboard": True, "tag": "", "screenshots": 1, "wandb": None, "trackio": None}
    copies = Copies(run, {"log": log}, None, print)
    second = _png(run.screenshots, "000002-score5.png")
    copies.write(10, {"score": 1.0})
    copies.write(20, {"score": 1.0})
    _png(run.screenshots, "000003-score-1.5.png", cut=60)  # still being written
    (run.screenshots / "000004-score9.png").symlink_to(run.screenshots / "000002-score5.png")
    (run.screenshots / "notes.txt").write_text("mine")
    copies.write(30, {"score": 1.0})
    _png(run.screenshots, "000003-score-1.5.png")
    copies.close()
    reader = EventAccumulator(str(run.tb)).Reload()
    assert reader.Tags()["images"] == ["performance/terminal_state"]
    shown = reader.Images("performance/terminal_state")
    assert [event.step for event in shown] == [10, 30]
    assert shown[0].encoded_image_string == second
    assert (shown[0].width, shown[0].height) == (4, 300)


def test_no_pictures_are_looked_for_where_nobody_asked(tmp_path):
    run = RunDir(tmp_path)
    log = {"tensorboard": True, "tag": "", "screenshots": 0, "wandb": None, "trackio": None}
    copies = Copies(run, {"log": log}, None, print)
    _png(run.screenshots, "000001-score0.png")
    copies.write(10, {"score": 1.0})
    copies.close()
    assert not EventAccumulator(str(run.tb)).Reload().Tags()["images"]
