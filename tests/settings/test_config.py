"""Settings from five layers: who wins, what is refused, and that nothing is lost in writing."""

from __future__ import annotations

import pytest

from ludus import registry
from ludus.errors import LudusError
from ludus.settings.resolve import Request, from_tree, load_config, resolve
from ludus.settings.resume import continued, extended
from ludus.settings.yaml import parse_document

NAMES = [entry.name for entry in registry.BUILT_IN]


def settings(*overrides, algo="dqn", env="CartPole-v1", **more):
    return resolve(Request(algo, env, overrides, environ=more.pop("environ", {}), **more))


def refused(*overrides, **more) -> LudusError:
    with pytest.raises(LudusError) as caught:
        settings(*overrides, **more)
    return caught.value


@pytest.mark.parametrize("name", NAMES)
def test_written_and_read_back_is_equal(name, tmp_path):
    cfg = settings("lr=0.1->1e-5@33%", "time=1.5h", "seed=7", algo=name).config
    path = tmp_path / "config.yaml"
    path.write_text(cfg.to_yaml())
    assert load_config(path) == cfg
    assert load_config(path).digest() == cfg.digest()
    assert from_tree(cfg.tree(), "here").algo_name == name


def test_a_schedule_that_needs_all_its_digits_survives(tmp_path):
    cfg = settings("lr={start: 0.12345678912, end: 0.0, over: 1000}").config
    assert from_tree(parse_document(cfg.to_yaml(), "x").tree, "x") == cfg


@pytest.mark.accept(123)
def test_precedence_of_all_layers(tmp_path, monkeypatch):
    presets = tmp_path / "mine.yaml"
    presets.write_text(
        "presets: [{name: p, match: ['CartPole*'], source: x, config: {algo: "
        "{batch: 11, gamma: 0.9, n_step: 5, double: true}, run: {keep: 9}}}]"
    )
    entry = registry.Entry(
        "layered",
        "ludus.algos.dqn:DQN",
        "ludus.algos.dqn:Config",
        "",
        presets=str(presets),
        variant={"n_step": 2, "clip_norm": 3.0, "batch": 10},
    )
    monkeypatch.setitem(registry._TABLE, "layered", entry)
    file = tmp_path / "my.yaml"
    file.write_text("algo:\n  batch: 12\n  gamma: 0.8\nrun:\n  seed: 4\n")
    got = settings(
        "algo.batch=14",
        algo="layered",
        files=[file],
        environ={"LUDUS_ALGO__BATCH": "13", "LUDUS_ALGO__GAMMA": "0.7", "LUDUS_SEED": "5"},
    )
    algo, sources = got.config.algo, got.sources
    assert (algo.batch, sources["algo.batch"]) == (14, "command line")
    assert (algo.gamma, sources["algo.gamma"]) == (0.7, "LUDUS_ALGO__GAMMA")
    assert (got.config.run.seed, sources["run.seed"]) == (5, "LUDUS_SEED")
    assert (algo.n_step, sources["algo.n_step"]) == (5, "preset p")
    assert (algo.clip_norm, sources["algo.clip_norm"]) == (3.0, "variant layered")
    assert (algo.double, sources["algo.double"]) == (True, "preset p")
    assert sources["algo.lr"] == "default"
    alone = settings(algo="layered", files=[file])
    assert (alone.config.algo.batch, alone.sources["algo.batch"]) == (12, f"{file}:2")
    assert settings(algo="layered", preset="none").config.algo.batch == 10
    assert got.user["algo"]["batch"] == 14 and "n_step" not in got.user["algo"]


def test_units_everywhere():
    cfg = settings("steps=1.5M", "capacity=20k", "batch=1k", "time=2h", "log_every=5k").config
    assert (cfg.run.steps, cfg.algo.capacity, cfg.algo.batch) == (1_500_000, 20_000, 1000)
    assert (cfg.run.time, cfg.log.every) == (7200.0, 5000)
    assert settings("lr=1e-3").config.algo.lr.start == 1e-3
    assert settings("env.num=1k").config.env.num == 1000


@pytest.mark.accept(127)
@pytest.mark.parametrize("text", ["true", "True", "on", "yes"])
def test_words_for_true(text):
    assert settings(f"algo.double={text}").config.algo.double is True


@pytest.mark.accept(127)
@pytest.mark.parametrize("text", ["false", "off", "no"])
def test_words_for_false(text):
    assert settings(f"tensorboard={text}").config.log.tensorboard is False


@pytest.mark.accept(127)
@pytest.mark.parametrize("text", ["1", "0", "'true'", "1.0", "null", "[true]", "y"])
def test_nothing_else_is_a_boolean(text):
    assert refused(f"algo.double={text}").code == "E102"


@pytest.mark.accept(127)
@pytest.mark.parametrize("key", ["algo.batch", "algo.gamma", "lr", "steps", "env.num"])
def test_a_boolean_is_not_a_number(key):
    assert refused(f"{key}=true").code == "E102"


def test_on_and_off_stay_words_where_they_are_choices():
    cfg = settings("exact=off", "save_replay=on", "terminal=off").config
    assert (cfg.run.exact, cfg.run.save_replay, cfg.log.terminal) == ("off", "on", "off")


@pytest.mark.parametrize("bad", ["nan", ".nan", ".inf", "-.inf"])
def test_numbers_are_finite(bad):
    assert refused(f"lr={bad}").code in ("E102", "E103")
    assert refused(f"algo.clip_norm={bad}").code in ("E102", "E103")
    assert refused(f"steps={bad}").code in ("E102", "E103")


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("algo.lrr=1", "E101", "algo.lr ?"),
        ("seeed=1", "E101", "seed ?"),
        ("algo.head.duelling=true", "E101", "algo.head.dueling ?"),
        ("foo.bar=1", "E101", "foo"),
        ("algo.batch=many", "E102", "algo.batch"),
        ("algo.batch=1.5", "E102", "algo.batch"),
        ("algo.batch=[1]", "E102", "algo.batch"),
        ("steps={a: 1}", "E102", "run.steps"),
        ("batch", "E102", "key=value"),
        ("algo.torso.hidden=[", "E102", "value"),
        ("algo.gamma=1.5", "E103", "less than or equal to 1"),
        ("env.num=0", "E103", "env.num"),
        ("run.fleet=warp", "E103", "inline"),
        ("algo.head.kind=catgorical", "E103", "categorical ?"),
        ("algo.replay.alpha=0.5", "E104", "algo.replay.kind=prioritized"),
        ("algo.warmup=1M", "E104", "capacity"),
        ("steps=+100", "E104", "resume"),
        ("frames=200M", "E104", "Atari"),
        ("algo.name=ppo", "E104", "both"),
        ("every=5", "E108", "log.every or eval.every"),
    ],
)
def test_refusals_name_the_key_and_a_way_out(text, code, says):
    error = refused(text)
    assert error.code == code
    assert says in error.render() and error.fix
    assert error.exit_code == 2


def test_a_file_is_answered_with_its_line(tmp_path):
    file = tmp_path / "my.yaml"
    file.write_text("algo: dqn\nenv: CartPole-v1\nrun:\n  seed: 1\n  sedd: 2\n")
    error = refused(algo=None, env=None, files=[file])
    assert (error.code, error.where) == ("E101", f"{file}:5") and "run.seed ?" in error.what
    file.write_text("algo.name: dqn\nenv: CartPole-v1\nalgo.head.kind: 3\n")
    assert refused(algo=None, env=None, files=[file]).where == f"{file}:3"


@pytest.mark.parametrize("text", ["a: [1", "- 1", "a: 1\na: 2", "\tx: 1", "algo: a\nalgo.b: c"])
def test_broken_files(tmp_path, text):
    file = tmp_path / "my.yaml"
    file.write_text(text)
    error = refused(files=[file])
    assert error.code == "E105" and str(file) in error.where
    assert refused(files=[tmp_path / "none.yaml"]).code == "E105"


def test_a_file_may_hold_everything(tmp_path):
    file = tmp_path / "my.yaml"
    file.write_text(
        "algo: rainbow_iqn\nenv: {id: CartPole-v1, num: 4}\nrun.seed: 3\npreset: none\n"
    )
    got = settings(algo=None, env=None, files=[file])
    assert got.config.algo_name == "rainbow-iqn" and got.preset is None
    assert (got.config.env.num, got.config.run.seed) == (4, 3)


def test_another_kind_keeps_what_still_applies():
    """Defaults of the old kind go, values somebody chose stay where the new kind has them."""
    got = settings("algo.head.kind=quantile", algo="rainbow", preset="none").config.algo
    assert (got.head.kind, got.head.dueling, got.head.noisy) == ("quantile", True, 0.5)
    assert not hasattr(
        settings("algo.replay.kind=uniform", algo="rainbow").config.algo.replay, "alpha"
    )
    assert settings("alpha=0.3", algo="rainbow").config.algo.replay.alpha == 0.3


def test_lists_of_tables_can_be_typed():
    cfg = settings(
        "env.wrappers=[{name: RescaleAction, options: {min_action: -1}}, {name: X}]"
    ).config
    assert [w.name for w in cfg.env.wrappers] == ["RescaleAction", "X"]
    assert cfg.env.wrappers[0].options == {"min_action": -1}
    assert settings("env.args.render_mode=rgb_array").config.env.args == {
        "render_mode": "rgb_array"
    }
    assert settings("algo.torso={kind: mlp, hidden: [8, 9]}").config.algo.torso.hidden == (8, 9)


def test_frames_are_four_to_a_step_on_atari():
    assert settings("frames=200M", env="ALE/Pong-v5").config.run.steps == 50_000_000


def test_a_short_epsilon_is_the_one_that_trains():
    cfg = settings("epsilon=0.25").config
    assert (cfg.algo.epsilon.start, cfg.eval.epsilon) == (0.25, 0.0)
    assert settings("eval.epsilon=0.25").config.eval.epsilon == 0.25
    assert refused("every=5").code == "E108"


def test_variables_are_checked_like_everything_else():
    error = refused(environ={"LUDUS_RUN__SEEED": "3"})
    assert (error.code, error.where) == ("E101", "LUDUS_RUN__SEEED")
    assert settings(environ={"LUDUS_RUNS_DIR": "/x", "PATH": "y"}).config.run.seed == 1


def test_names_are_needed():
    assert refused(algo=None, env=None).code == "E106"
    assert refused(env=None).code == "E201"
    assert "dqn ?" in refused(algo="dqm").what


def test_derived_numbers_follow_the_horizon():
    run = settings("steps=100k", "horizon=50k").config.run
    assert (run.horizon_steps, run.checkpoint_steps, run.thread_count) == (50_000, 5_000, 1)
    assert settings("steps=1000").config.run.checkpoint_steps == 1_000
    assert settings("steps=1G").config.run.checkpoint_steps == 1_000_000
    assert settings("steps=1000", "checkpoint_every=7").config.run.checkpoint_steps == 7
    assert settings("threads=3").config.run.thread_count == 3


def test_evaluations_during_training_have_episodes():
    assert settings("eval.every=500").config.eval.episodes == 10
    assert settings("eval.every=500", "eval.episodes=3").config.eval.episodes == 3
    assert settings("steps=500").config.eval.episodes == 0


@pytest.mark.parametrize(("asking", "key"), [("eval.every=1k", "every"), ("eval.live=on", "live")])
def test_evaluations_have_episodes_and_say_why(asking, key):
    result = settings(asking)
    assert result.config.eval.episodes == 10 and result.sources["eval.episodes"] == f"eval.{key}"
    typed = settings(asking, "eval.episodes=3")
    assert (typed.config.eval.episodes, typed.sources["eval.episodes"]) == (3, "command line")
    with pytest.raises(LudusError) as caught:
        settings(asking, "eval.episodes=0")
    assert caught.value.code == "E104" and caught.value.where == "command line"
    assert f"eval.{key}" in caught.value.what


def test_a_resumed_run_may_begin_to_evaluate():
    stored = settings("steps=50k").config
    assert extended(stored, ["eval.every=1k"]).config.eval.episodes == 10
    again = settings("steps=50k", "eval.every=1k")
    assert continued(stored, again.config, again.sources).eval.episodes == 10
