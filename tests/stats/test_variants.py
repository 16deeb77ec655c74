"""Which runs are seeds of one experiment, and what tells the others apart."""

from __future__ import annotations

import pytest

from ludus.envs import EXECUTION_SETTINGS
from ludus.envs.config import EnvConfig
from ludus.settings.resolve import Request, resolve
from ludus.stats.compare import compare
from ludus.stats.groups import IGNORED, group_runs, result_settings, variants
from ludus.stats.runs import read_run
from tests.stats.made import made_run


def test_every_setting_that_decides_nothing_is_one():
    config = resolve(Request("dqn", "CartPole-v1", environ={})).config
    known = {*config.flat(), "log"}
    assert set(IGNORED) <= known and set(EXECUTION_SETTINGS) <= set(EnvConfig.model_fields)
    left = result_settings(config.tree())
    assert {"algo.lr", "env.num", "run.steps", "run.actors", "eval.epsilon"} <= set(left)
    assert not {key for key in left if key in IGNORED or key.startswith("log.")}
    assert not {f"env.{name}" for name in EXECUTION_SETTINGS} & set(left)


def test_one_group_for_each_set_of_settings():
    tables = [{"algo.lr": lr, "env.stack": 4} for lr in (0.1, 0.2, 0.1)]
    assert variants("dqn", tables) == [("dqn lr=0.1", [0, 2]), ("dqn lr=0.2", [1])]
    assert variants("dqn", tables[:1]) == [("dqn", [0])]
    small = [{"algo.lr": lr} for lr in (1e-5, 2.5e-10)]
    assert [label for label, _ in variants("dqn", small)] == ["dqn lr=1e-5", "dqn lr=2.5e-10"]
    others = [{"eval.epsilon": 0.0, "run.steps": 9}, {"eval.epsilon": 0.1, "run.steps": 9}]
    assert [label for label, _ in variants("a", others)] == [
        "a eval.epsilon=0.0",
        "a eval.epsilon=0.1",
    ]


def test_settings_are_named_in_the_order_of_the_file():
    tables = [{"algo.lr": lr, "algo.gamma": g} for lr, g in ((0.1, 0.9), (0.2, 0.8))]
    assert [label for label, _ in variants("dqn", tables)] == [
        "dqn lr=0.1 gamma=0.9",
        "dqn lr=0.2 gamma=0.8",
    ]
    more = [{**t, "env.stack": 1} for t in tables]
    more.append({"env.stack": 4, "algo.lr": 0.1, "algo.gamma": 0.9})
    assert variants("dqn", more)[2] == ("dqn lr=0.1 gamma=0.9 stack=4", [2])


def test_labels_stay_short_and_are_never_shared():
    tables = [{"algo.x": "long " * 30 + end, **{f"algo.{k}": end for k in "bcd"}} for end in "pq"]
    (one, _), (other, _) = variants("dqn", tables)
    assert one.endswith("… b=p c=p (+1)") and other.endswith("… b=q c=q (+1)")
    (one, _), (other, _) = variants("dqn", [{"algo.x": "long " * 30 + end} for end in "pq"])
    assert one != other and max(len(one), len(other)) < 60


WAYS = {
    "each seed with a rate of its own": [{"lr": 0.1}, {"lr": 0.2}, {"lr": 0.3}],
    "two rates, one of them twice": [{"lr": 0.1}, {"lr": 0.2}, {"lr": 0.1}],
    "one rate": [{"lr": 0.1}] * 3,
}


@pytest.mark.parametrize("way", WAYS)
def test_the_report_and_the_comparison_agree(tmp_path, way):
    made = [
        made_run(tmp_path, name=f"r{i}", seed=i, scores=[1.0], settings=settings)
        for i, settings in enumerate(WAYS[way])
    ]
    (env,) = compare([read_run(run) for run in made])["environments"]
    groups = group_runs([read_run(run, history=True) for run in made])
    found = {g.label: sorted(g.seeds) for g in groups}
    assert found == {g["label"]: sorted(g["seeds"]) for g in env["algorithms"]}
    assert len(found) == len({str(s) for s in WAYS[way]})


def test_longer_runs_are_no_seeds_of_shorter_ones(tmp_path):
    made = [made_run(tmp_path, name=f"r{i}", seed=i, scores=[1.0]) for i in range(2)]
    text = made[1].config.read_text().replace("steps: 1000", "steps: 2000")
    made[1].config.write_text(text)
    labels = [g.label for g in group_runs([read_run(run) for run in made])]
    assert labels == ["dqn steps=1000", "dqn steps=2000"]


def test_a_setting_that_an_older_version_did_not_have_sets_nothing_apart():
    old, new = {"algo.lr": 1e-3}, {"algo.lr": 1e-3, "algo.log_std": 0.0}
    assert variants("ppo", [old, new, new]) == [("ppo", [0, 1, 2])]
    other = {"algo.lr": 1e-3, "algo.log_std": 0.5}
    assert len(variants("ppo", [new, other])) == 2
    plain, normal = {"env.normalize": None}, {"env.normalize.obs": True}
    assert len(variants("ppo", [plain, normal])) == 2, "it is known to be off"
