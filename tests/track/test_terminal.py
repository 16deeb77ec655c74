"""The panel and the plain lines."""

import dataclasses
import io
import re

import pytest

from ludus.track import terminal
from ludus.track.terminal import Header, Panel, Plain, Silent, Snapshot, make_display

HEADER = Header("CartPole-v1", "rainbow-iqn", 1, "7f3a", preset="classic")
SNAP = Snapshot(
    step=38_000,
    steps=100_000,
    updates=9_000,
    seconds=60,
    score=17.25,
    episodes=420,
    best=18.0,
    history=(1.0, 5.0, 9.0, 17.25),
    evaluation="+18.9 (30 episodes)",
    steps_per_second=1_000.0,
    updates_per_second=61.0,
    replay_ratio=8.0,
    replay_target=8.0,
    replay_fill=0.5,
    split={"env": 0.31, "act": 0.18, "learn": 0.44, "other": 0.07},
    metrics={"loss": 0.0132, "grad_norm": 2.1, "epsilon": 0.01},
    checkpoint_seconds=120,
    faults=1,
)


class Tty(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def drawn(snap):
    stream = Tty()
    panel = Panel(HEADER, stream=stream)
    panel.update(snap)
    panel.message("a [bold]message[/bold]")
    panel.close()
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())


FLEET = {"alive": 3, "restarts": 1, "waiting_chunks": 2, "dropped_chunks": 4, "policy_lag": 5.26,
         "score_0": 20.5, "epsilon_0": 0.4, "score_2": -3.0}  # fmt: skip


def test_several_actors_have_a_line_of_their_own():
    whole = (
        "3 alive · lag 5.3 updates · queue 2 · dropped 4 · restarts 1 · 0: +20.5 (eps 0.4) · 2: -3"
    )
    snap = dataclasses.replace(SNAP, actors=FLEET)
    *_, line = terminal.plain_lines(snap)
    assert line == f"actors   {whole}"
    assert whole.replace(" · ", "   ") in dict(terminal.panel_lines(HEADER, snap))["actors"]
    assert "queue 2" in drawn(snap)
    assert len(terminal.plain_lines(SNAP)) == 2  # a lone one has none


def test_plain_lines_show_acting_and_learning():
    stream = io.StringIO()
    display = Plain(every=30.0, stream=stream)
    display.update(SNAP)
    actor, learner = stream.getvalue().splitlines()
    stamp = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d "
    assert re.match(stamp + "actor .*38k / 100k steps", actor)
    for text in ("1k steps/s", "train(100) +17.25", "episodes 420", "ETA 1m02s", "38%"):
        assert text in actor
    assert re.match(stamp + "learner .*9k updates", learner)
    for text in ("61 updates/s", "loss 0.0132", "learn 44%", "bottleneck: learner"):
        assert text in learner


def test_the_panel_shows_everything_it_was_given(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    text = drawn(SNAP)
    for part in (
        "CartPole-v1 · rainbow-iqn · classic · seed 1 · run 7f3a",
        "ETA 1m02s  [#######-----------] 38%  38k / 100k steps",
        "train(100) +17.25   best +18   eval +18.9 (30 episodes)   episodes 420   ▁▃▄█",
        "1k steps/s   61 updates/s   replay ratio 8 (target 8)",
        "env 31% · act 18% · learn 44% · other 7% -> bottleneck: learner",
        "replay 50% full   checkpoint 2m00s ago   faults 1",
        "loss 0.0132  grad_norm 2.1  epsilon 0.01",
        "Ctrl-C: save and stop · again: quit now",
        "a [bold]message[/bold]",
    ):
        assert part in text


def test_an_empty_snapshot_is_drawn_without_guesses():
    text = drawn(Snapshot(step=0, steps=0))
    assert "ETA -" in text
    assert "no whole episode yet" in text
    assert "bottleneck" not in text
    assert "eval" not in text


def test_terminal_or_lines_or_nothing(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert type(make_display(HEADER, stream=io.StringIO())) is Plain
    assert type(make_display(HEADER, "plain", stream=Tty())) is Plain
    assert type(make_display(HEADER, "off", stream=Tty())) is Silent
    assert type(make_display(HEADER, quiet=True, stream=Tty())) is Silent
    panel = make_display(HEADER, stream=Tty())
    assert type(panel) is Panel
    panel.close()
    monkeypatch.setenv("TERM", "dumb")
    assert type(make_display(HEADER, stream=Tty())) is Plain


def colored(**more):
    stream = Tty()
    panel = make_display(HEADER, stream=stream, **more)
    panel.update(SNAP)
    panel.close()
    return "\x1b[1;36m" in stream.getvalue()


def test_no_color_is_respected(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert colored()
    assert not colored(color=False)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not colored()


def test_quiet_still_says_what_matters():
    stream = io.StringIO()
    display = make_display(HEADER, quiet=True, stream=stream)
    display.update(SNAP)
    assert not display.due()
    display.message("saved")
    assert stream.getvalue().endswith(" saved\n")
    assert len(stream.getvalue().splitlines()) == 1


def test_lines_come_at_the_chosen_interval(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
    display = Plain(every=30.0, stream=io.StringIO())
    assert not display.due()
    now[0] += 5.0
    assert display.due()
    display.update(SNAP)
    now[0] += 29.9
    assert not display.due()
    now[0] += 0.2
    assert display.due()


def test_a_closed_output_does_not_end_the_run():
    stream = io.StringIO()
    display = Plain(stream=stream)
    stream.close()
    display.update(SNAP)
    assert not display.due()


def test_spark_and_bar():
    assert terminal.spark([0.0, 7.0]) == "▁█"
    assert terminal.spark([3.0, 3.0, float("nan")]) == "▁▁"
    assert terminal.spark([1.0]) == ""
    assert terminal.progress_bar(1.0, 4) == "[####] 100%"
    assert Snapshot(step=5, steps=4).fraction == 1.0
    assert Snapshot(step=5, steps=4, steps_per_second=1.0).eta == 0


def result(env, act, learn, learner_bound, step=1):
    split = {"env": env, "act": act, "learn": learn, "other": max(0, 1 - env - act - learn)}
    return terminal.plain_lines(Snapshot(step, 10, split=split, learner_bound=learner_bound))[1]


@pytest.mark.parametrize(
    ("shares", "learner_bound", "said"),
    [
        ((0.3, 0.8, 0.6), None, "acting"),  # in turn: the largest part
        ((0.1, 0.22, 0.92), False, "learner"),  # side by side: who is busier
        ((0.27, 0.22, 0.68), False, "learner"),
        ((0.5, 0.3, 0.68), False, "environment"),
        ((0.3, 0.5, 0.68), False, "acting"),
        ((0.6, 0.39, 0.9), True, "learner, which drops chunks"),  # such actors never wait
    ],
)
def test_the_bottleneck_agrees_with_the_shares_shown(shares, learner_bound, said):
    assert result(*shares, learner_bound).endswith(f"-> bottleneck: {said}")


def test_shares_of_different_processes_are_distinguished():
    line = result(0.27, 0.22, 0.68, False)
    assert "each actor: env 27% · act 22% · learner: 68% -> bottleneck: learner" in line
    assert "other" not in line  # of whose time?


@pytest.mark.parametrize("learner_bound", [None, False])
def test_nothing_is_the_bottleneck_of_a_run_that_begins(learner_bound):
    assert "bottleneck" not in result(0.0, 0.0, 0.0, learner_bound, step=0)
    assert "bottleneck" not in result(0.3, 0.2, 0.0, learner_bound, step=0)
    assert "bottleneck" not in result(0.002, 0.001, 0.0, learner_bound, step=5000)  # resumed
