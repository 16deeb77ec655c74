"""The run directory: unique names, nothing deleted, nothing outside, found again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.errors import LudusError
from ludus.track.run_dir.lock import RunLock
from ludus.track.run_dir.rundir import RunDir, check_name, list_runs, slug


@pytest.mark.accept(129)
def test_equal_runs_get_different_directories_and_keep_their_files(tmp_path):
    first = RunDir.create(tmp_path, "CartPole-v1", "dqn", 1)
    first.config.write_text("a: 1\n")
    others = [RunDir.create(tmp_path, "CartPole-v1", "dqn", 1) for _ in range(30)]
    assert len({run.path for run in [first, *others]}) == 31
    assert first.config.read_text() == "a: 1\n"
    stem, _, end = first.name.rpartition("-")
    assert stem == "CartPole-v1-dqn-s1"
    assert len(end) == 4
    assert int(end, 16) >= 0


@pytest.mark.accept(129)
def test_a_fresh_start_keeps_the_earlier_run(tmp_path):
    for text in ("one", "two", "three"):
        run = RunDir.create(tmp_path, "E", "dqn", 1, name="night", fresh=True)
        run.config.write_text(text)
    kept = {p.name: (p / "config.yaml").read_text() for p in tmp_path.iterdir()}
    assert kept == {"night.1": "one", "night.2": "two", "night": "three"}


def test_a_named_run_that_exists_is_refused(tmp_path):
    RunDir.create(tmp_path, "E", "dqn", 1, name="night").config.write_text("kept")
    with pytest.raises(LudusError) as caught:
        RunDir.create(tmp_path, "E", "dqn", 1, name="night")
    assert caught.value.code == "E301"
    assert (tmp_path / "night" / "config.yaml").read_text() == "kept"


def test_a_fresh_start_does_not_touch_a_run_in_progress(tmp_path):
    run = RunDir.create(tmp_path, "E", "dqn", 1, name="night")
    with RunLock(run.path), pytest.raises(LudusError) as caught:
        RunDir.create(tmp_path, "E", "dqn", 1, name="night", fresh=True)
    assert caught.value.code == "E302"
    assert run.path.is_dir()


@pytest.mark.parametrize(
    "name", ["../x", "a/b", "/tmp/x", "..", ".", "", "a..b", ".hidden", "-rf", "a\nb", "x" * 200]
)
def test_names_cannot_leave_the_runs_directory(tmp_path, name):
    with pytest.raises(LudusError) as caught:
        RunDir.create(tmp_path / "runs", "E", "dqn", 1, name=name)
    assert caught.value.code == "E103"
    assert list(tmp_path.rglob("*")) == []


@given(st.text(max_size=80))
def test_any_environment_id_becomes_one_valid_component(text):
    part = slug(text)
    assert check_name(part) == part
    assert "/" not in part
    assert part not in ("", ".", "..")


@pytest.mark.parametrize("place", ["/proc/ludus-runs", "file/below", "file"])
def test_an_unwritable_place_is_e301(tmp_path, place):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LudusError) as caught:
        RunDir.create(tmp_path / place, "E", "dqn", 1)
    assert caught.value.code == "E301"
    assert "--runs-dir" in caught.value.fix


def test_open_by_path_name_and_ending(tmp_path, monkeypatch):
    run = RunDir.create(tmp_path / "runs", "E", "dqn", 1)
    monkeypatch.chdir(tmp_path)
    ending = run.name.rsplit("-", 1)[1]
    for text in (run.path, f"runs/{run.name}", run.name, ending):
        assert RunDir.open(text, "runs") == run


def test_open_names_the_nearest_run(tmp_path):
    RunDir.create(tmp_path, "E", "dqn", 1, name="pong-night")
    with pytest.raises(LudusError) as caught:
        RunDir.open("pong-nihgt", tmp_path)
    assert caught.value.code == "E303"
    assert "pong-night" in caught.value.what


def test_list_runs_shows_runs_only(tmp_path):
    made = {RunDir.create(tmp_path, "E", "dqn", s).name for s in range(3)}
    (tmp_path / "notes").mkdir()
    (tmp_path / "file.txt").write_text("")
    assert {run.name for run in list_runs(tmp_path)} == made
    assert list_runs(tmp_path / "nowhere") == []


def test_a_link_to_nowhere_is_set_aside_like_a_run(tmp_path):
    (tmp_path / "x").symlink_to(tmp_path / "gone")
    with pytest.raises(LudusError, match="exists already"):
        RunDir.create(tmp_path, "CartPole-v1", "dqn", 1, name="x")
    made = RunDir.create(tmp_path, "CartPole-v1", "dqn", 1, name="x", fresh=True)
    assert made.path.is_dir() and (tmp_path / "x.1").is_symlink()
    assert not (tmp_path / "gone").exists()
