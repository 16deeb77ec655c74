"""A resumed run is the run of its checkpoint: other settings, other runs and other versions are
refused or said, as they are on the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ludus.track.checkpoint.format import MANIFEST, Stored, read_manifest
from ludus.track.checkpoint.reader import load
from ludus.track.checkpoint.writer import _write_file
from ludus.track.run_dir import manifest as manifests
from tests.cli.conftest import call, train


@pytest.fixture
def path(finished, tmp_path) -> Path:
    """A copy of a finished run."""
    return Path(shutil.copytree(finished, tmp_path / "runs" / "x", symlinks=True))


def contents(path):
    return {p: p.read_bytes() for p in path.rglob("*") if p.is_file() and p.name != "LOCK"}


def edit(path: Path, old: str, new: str) -> None:
    text = (path / "config.yaml").read_text()
    assert old in text
    (path / "config.yaml").write_text(text.replace(old, new, 1))


def goes_on(path: Path, *words):
    return call("resume", path, "steps=+20", "-q", *words)


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [("gamma: 0.99", "gamma: 0.5", "algo.gamma"), ("seed: 1", "seed: 7", "run.seed"),
     ("batch: 8", "batch: 16", "algo.batch"), ("warmup: 40", "warmup: 50", "algo.warmup")],
)  # fmt: skip
def test_settings_edited_in_the_file_are_refused(path, old, new, key):
    edit(path, old, new)
    before = contents(path)
    for words in (("resume", path), ("resume", path, "steps=+20")):
        answer = call(*words)
        line = next(x for x in answer.err.splitlines() if key in x)
        assert answer.code == 1 and "E307" in answer.err and " -> " in line
        assert "config.yaml" in answer.err and "checkpoint 000000000240" in answer.err
    assert contents(path) == before


def test_so_are_they_when_the_command_agrees_with_the_file(path):
    edit(path, "gamma: 0.99", "gamma: 0.5")
    answer = train(path.parent, "--run", "x", "gamma=0.5", "steps=300")
    assert answer.code == 1 and "E307" in answer.err


def test_free_settings_may_be_edited(path):
    edit(path, "keep: 3", "keep: 7")
    edit(path, "steps: 240", "steps: 300")
    answer = call("resume", path, "-q", "--json")
    assert (answer.code, answer.json["step"]) == (0, 300)
    assert "horizon: 240" in (path / "config.yaml").read_text(), "as with steps=300 typed"


def test_a_run_made_longer_goes_on_before_its_next_checkpoint(path):
    """config.yaml has the new length, the newest checkpoint the old one."""
    stopped = goes_on(path, "steps=500", "--callback", "tests.cli.parts:StopAtOnce")
    assert stopped.code == 0, stopped.err
    text = (path / "config.yaml").read_text()
    for newer in (path / "checkpoints").glob("*"):
        if newer.name.isdigit() and int(newer.name) > 240:
            shutil.rmtree(newer)
    assert "steps: 500" in text and "horizon: 240" in text
    answer = call("resume", path, "-q", "--json")
    assert (answer.code, answer.json["step"]) == (0, 500), answer.err


def test_checkpoints_of_another_run_are_refused(path, runs):
    other = Path(train(runs, "--run", "other").json["path"])
    shutil.rmtree(path / "checkpoints")
    shutil.copytree(other / "checkpoints", path / "checkpoints", symlinks=True)
    before = contents(path)
    for words in ((), ("steps=+20",)):
        answer = call("resume", path, *words)
        assert answer.code == 1 and "E306" in answer.err and "another run" in answer.err
        assert "--init-from" in answer.err
    assert contents(path) == before
    weights = path / "checkpoints" / "last"
    assert train(runs, "--run", "new", "--init-from", weights).code == 0, "which is for that"


def test_other_versions_are_said(path, monkeypatch):
    now = manifests.versions()
    monkeypatch.setattr(
        "ludus.track.run_dir.manifest.versions", lambda: {**now, "torch": "9.9", "numpy": ""}
    )
    answer = goes_on(path)
    (line,) = [x for x in answer.out.splitlines() if "torch" in x]
    assert answer.code == 0 and f"torch {now['torch']} -> 9.9" in line and "warning" in line
    assert load(path).state["origin"]["versions"]["torch"] == "9.9"


def test_a_manifest_that_names_other_versions_is_said(path):
    result = json.loads((path / "manifest.json").read_text())
    result["versions"]["torch"] = "1.0.0"
    (path / "manifest.json").write_text(json.dumps(result))
    answer = goes_on(path)
    (line,) = [x for x in answer.out.splitlines() if "1.0.0" in x]
    assert answer.code == 0 and "manifest.json" in line


def test_the_same_versions_are_not_worth_a_word(path):
    answer = goes_on(path)
    assert answer.code == 0 and "warning" not in answer.out


def rewrite(folder: Path, change) -> None:
    """state.json of a checkpoint, with digests that fit."""
    state = json.loads((folder / "state.json").read_text())
    change(state)
    table = read_manifest(folder)
    stored = _write_file(folder / "state.json", json.dumps(state).encode())
    table.files["state.json"] = Stored(*stored)
    (folder / MANIFEST).write_bytes(table.to_bytes())


@pytest.mark.parametrize("config", ["missing", None, [], "x", {}])
def test_a_checkpoint_without_settings_is_refused(path, config):
    """Every version wrote them: without them, any other settings would fit."""
    for folder in (path / "checkpoints").glob("0*"):
        rewrite(folder, lambda state: state.pop("config"))
        if config != "missing":
            rewrite(folder, lambda state: state.update(config=config))
    edit(path, "gamma: 0.99", "gamma: 0.5")
    before = contents(path)
    for words in ((), ("steps=+20",)):
        answer = call("resume", path, *words)
        assert answer.code == 1 and "E306" in answer.err and "settings" in answer.err
        assert "--init-from" in answer.err
    assert contents(path) == before


def _older(state) -> None:
    del state["origin"], state["health"], state["actors"], state["offsets"]["events"]


def strip(path: Path) -> None:
    """As older versions wrote it."""
    for folder in (path / "checkpoints").iterdir():
        if not folder.name.isdigit():
            continue
        rewrite(folder, _older)
    result = json.loads((path / "manifest.json").read_text())
    del result["id"]
    (path / "manifest.json").write_text(json.dumps(result))


def test_older_checkpoints_can_be_resumed_with_a_word(path):
    strip(path)
    answer = goes_on(path)
    (line,) = [x for x in answer.out.splitlines() if "warning" in x]
    assert answer.code == 0 and "older version" in line
    made = load(path).state["origin"]["run"]
    assert made and made == json.loads((path / "manifest.json").read_text())["id"]
    assert "warning" not in goes_on(path).out
