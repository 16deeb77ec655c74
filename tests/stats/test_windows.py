"""The training return: the last 100 whole episodes at evenly spaced steps, in bounded time."""

from __future__ import annotations

import statistics

import pytest

from ludus.stats import windows
from ludus.stats.windows import read_windows


def write(path, rows):
    lines = ["step,slot,score,length,end,seconds,info"]
    lines += [f"{step},0,{score},1,{end},{step / 10},{info}" for step, score, end, info in rows]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.accept(132)
def test_mean_deviation_and_extremes_of_the_last_100_episodes(tmp_path):
    scores = [float((7 * i) % 31 - 5) for i in range(300)]
    rows = [(10 * i, s, "terminated", "") for i, s in enumerate(scores)]
    found = read_windows(write(tmp_path / "e.csv", rows))
    assert found[-1].step == 2990 and found[-1].seconds == 299.0
    for window in found:
        end = window.step // 10 + 1
        last = scores[max(0, end - 100) : end]
        assert window.episodes == len(last)
        assert window.mean == pytest.approx(statistics.fmean(last))
        assert window.std == pytest.approx(statistics.stdev(last) if len(last) > 1 else 0.0)
        assert (window.least, window.most) == (min(last), max(last))


def test_cut_episodes_and_torn_lines_never_enter(tmp_path):
    rows = [
        (10, 1.0, "terminated", ""),
        (20, 999.0, "checkpoint", ""),
        (30, 3.0, "truncated", '"{""a"": 1, ""b"": 2}"'),
    ]
    path = write(tmp_path / "e.csv", rows)
    with path.open("a") as file:
        file.write("40,0,5000.0,1,term")
    assert read_windows(path)[-1][:4] == (30, 3.0, 2.0, pytest.approx(2**0.5))
    assert read_windows(tmp_path / "none.csv") == []


def test_a_long_file_is_read_in_parts_with_the_same_end(tmp_path, monkeypatch):
    info = '"{""epsilon"": 0.125}"'
    rows = [(10 * i, float(i % 17), "terminated", info) for i in range(6_000)]
    path = write(tmp_path / "e.csv", rows)
    whole = read_windows(path)
    monkeypatch.setattr(windows, "_WHOLE", 1000)
    monkeypatch.setattr(windows, "_SAMPLE", 4096)
    parts = read_windows(path)
    assert parts[-1] == whole[-1] and parts[-1].episodes == 100
    assert len(parts) == windows.POINTS
    assert [w.step for w in parts] == sorted(w.step for w in parts)
    monkeypatch.setattr(windows, "_WHOLE", 10**9)
    by_step = {w.step: w for w in read_windows(path, points=30_000)}
    for window in parts[5:]:
        assert window == by_step[window.step]


def test_points_are_evenly_spaced_in_steps(tmp_path):
    short, long = [(i, 1.0, "terminated", "") for i in range(1000)], []
    long = [(1000 + 500 * i, 2.0, "terminated", "") for i in range(20)]
    found = read_windows(write(tmp_path / "e.csv", short + long), points=50)
    early = [w for w in found if w.step < 1000]
    assert len(early) < 10 and len(found) > 15


def test_lines_out_of_order_are_put_in_order(tmp_path):
    lines = ["step,slot,score,length,end,seconds,info"]
    lines += [f"{step},0,{step}.0,5,terminated,1.0," for step in (30, 10, 20, 5)]
    (tmp_path / "episodes.csv").write_text("\n".join([*lines, ""]))
    found = read_windows(tmp_path / "episodes.csv")
    assert [w.step for w in found] == [5, 10, 20, 30] and found[-1].episodes == 4
