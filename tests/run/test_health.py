"""When an actor counts as dead, without any actor."""

import pytest

from ludus.run.health import ended, patience, tidy, verdict, wrote


@pytest.mark.parametrize(
    ("now", "beat", "dumping", "said"),
    [
        (10.0, 8.0, None, "fine"),
        (10.0, 6.5, None, "ask"),
        (10.5, 6.5, 10.0, "fine"),  # it may still be writing
        (11.5, 6.5, 10.0, "dead"),
        (11.5, 10.2, 10.0, "spare"),
    ],
)
def test_who_is_silent_is_asked_first_and_spared_if_that_wakes_it(now, beat, dumping, said):
    assert verdict(now, beat, dumping, 3.0) == said


def test_patience_while_environments_are_made():
    assert patience(30.0, 120.0, 50.0, ready=True) == 30
    assert patience(30.0, 120.0, 50.0, ready=False) == 120
    assert patience(30.0, None, 50.0, ready=False) == 100
    assert patience(30.0, None, 1.0, ready=False) == 30


def test_how_a_process_ended():
    assert "signal 9" in ended(-9) and "exit code 3" in ended(3) and "exit code" in ended(None)


def test_only_stacks_that_were_written_are_kept(tmp_path):
    empty, full = tmp_path / "a.stack", tmp_path / "b.stack"
    empty.touch()
    full.write_text("File")
    for path in (empty, full, None, tmp_path / "none"):
        tidy(path)
    assert not empty.exists() and wrote(full) and not wrote(None)
