"""Which failures of actors end a run, without any actor."""

import pytest

from ludus.errors import LudusError
from ludus.fleets.health import Restarts, remove_empty_dumps, start_seconds


def test_the_limit_at_the_start_grows_with_actors_and_environments():
    assert start_seconds(1, 1) == 310
    assert start_seconds(100, 1) == 805
    assert start_seconds(100, 16) == 880


def test_what_to_type_names_the_run(tmp_path):
    with pytest.raises(LudusError) as caught:
        Restarts(0, 1.0, tmp_path / "mine").add(0, "it broke")
    assert f"ludus resume {tmp_path / 'mine'} " in caught.value.fix


def test_empty_files_of_a_killed_session_are_swept(tmp_path):
    for name, text in (("actor-0-1.stack", ""), ("actor-1-0.stack", "File"), ("x.txt", "")):
        (tmp_path / name).write_text(text)
    remove_empty_dumps(tmp_path)
    remove_empty_dumps(tmp_path / "none")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["actor-1-0.stack", "x.txt"]
