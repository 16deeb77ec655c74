"""Ids, aliases, entry points, wrappers, and what is said when something cannot be made."""

import gymnasium as gym
import numpy as np
import pytest
from pydantic import ValidationError

from ludus.envs.config import EnvConfig
from ludus.envs.ids import resolve_id
from ludus.envs.make import known_ids, make_envs, probe_spec
from ludus.envs.test_envs import PROBES
from ludus.errors import LudusError
from ludus.types import Continuous, Discrete, MultiDiscrete
from tests.envs.recorder import collect

WALK = """
    import gymnasium as gym, numpy as np
    class Walk(gym.Env):
        def __init__(self, size=5):
            self.observation_space = gym.spaces.Box(0, size, (1,), np.float32)
            self.action_space = gym.spaces.Discrete(2)
            self.size = size
        def obs(self):
            return np.array([self.place], np.float32)
        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.place = int(self.np_random.integers(self.size))
            return self.obs(), {}
        def step(self, action):
            self.place += 1 if action else -1
            self.place = max(self.place, 0)
            return self.obs(), 1.0, self.place >= self.size, False, {}
    def build(size=3):
        return Walk(size)
    def not_an_env():
        return 3
    if "Walked-v0" not in gym.registry:
        gym.register("Walked-v0", entry_point=Walk, max_episode_steps=4)
    """

CLASSICS = {
    "CartPole-v1": "CartPole-v1",
    "LunarLander-v2": "LunarLander-v3",
    "MountainCar-v0": "MountainCar-v0",
    "Acrobot-v1": "Acrobot-v1",
    "Pendulum-v1": "Pendulum-v1",
}


@pytest.mark.accept(107)
@pytest.mark.parametrize("id", CLASSICS)
def test_classic_control_is_made_and_seeded(id):
    records = []
    for seed in (1, 1, 2):
        with make_envs(EnvConfig(id=id, num=2), seed=seed) as envs:
            assert envs.spec.id == CLASSICS[id]
            records.append(collect(envs, 15))
    np.testing.assert_array_equal(records[0].obs, records[1].obs)
    np.testing.assert_array_equal(records[0].reward, records[1].reward)
    assert not np.array_equal(records[0].obs, records[2].obs)
    assert not np.array_equal(records[0].obs[:, 0], records[0].obs[:, 1])


@pytest.mark.accept(107)
def test_only_versions_that_are_gone_are_aliased():
    assert resolve_id("LunarLander-v2") == "LunarLander-v3"
    assert resolve_id("CartPole-v0") == "CartPole-v0"  # still there
    assert resolve_id("CartPole-v9") == "CartPole-v9"  # never upwards to an older one
    with pytest.raises(LudusError, match="E201"):
        probe_spec(EnvConfig(id="CartPole-v9"))


@pytest.mark.accept(109)
@pytest.mark.parametrize(
    ("target", "args", "limit", "high"),
    [("Walk", {"size": 7}, None, 7), ("build", {}, None, 3), ("Walked-v0", {"size": 4}, 4, 4)],
)
def test_any_environment_by_entry_point(module_of, target, args, limit, high):
    cfg = EnvConfig(id=f"{module_of(WALK)}:{target}", args=args, num=2)
    spec = probe_spec(cfg)
    assert spec.max_episode_steps == limit and spec.obs.high == high
    assert spec.action == Discrete(2)
    with make_envs(cfg, seed=1) as envs:
        assert collect(envs, 5).mask.sum() > 5


@pytest.mark.accept(109)
def test_termination_and_truncation_are_kept_apart(module_of):
    # Walking right ends for real, walking left runs into the limit of four steps.
    cfg = EnvConfig(id=f"{module_of(WALK)}:Walked-v0", args={"size": 2}, num=2)
    with make_envs(cfg, seed=1) as envs:
        rows = collect(envs, 4, actions=[[1, 0]] * 4)
    assert {e.env: e.end for e in rows.episodes} == {0: "terminated", 1: "truncated"}
    assert rows.discount[rows.last[:, 0], 0].tolist() == [0]
    assert rows.discount[rows.last[:, 1], 1].tolist() == [1]
    # Both at once: what terminated is not bootstrapped from.
    both = EnvConfig(id="ludus/Counter-v0", args={"length": 3}, max_episode_steps=3)
    with make_envs(both, seed=1) as envs:
        rows = collect(envs, 3)
    assert rows.discount[2, 0] == 0 and rows.episodes[0].end == "terminated"


@pytest.mark.accept(109)
@pytest.mark.parametrize(
    "id", ["Blackjack-v1", "FrozenLake-v1", "Taxi-v3", "MountainCarContinuous-v0"]
)
def test_any_environment_by_id(id):
    with make_envs(EnvConfig(id=id, num=2), seed=1) as envs:
        rows = collect(envs, 30) if not envs.spec.has_action_mask else None
        assert rows is None or np.isfinite(rows.reward).all()
        assert envs.spec.id in known_ids()


@pytest.mark.parametrize("id", [id for id in PROBES if "Faulty" not in id and "Masked" not in id])
def test_every_probe_can_be_stepped(id):
    with make_envs(EnvConfig(id=id, num=2), seed=1) as envs:
        assert envs.spec == probe_spec(EnvConfig(id=id))
        assert collect(envs, 20).episodes


def test_the_truncation_probe_shows_what_its_values_assume():
    for id, end, discount in [("Truncation", "truncated", 1), ("Termination", "terminated", 0)]:
        with make_envs(EnvConfig(id=f"ludus/{id}-v0"), seed=1) as envs:
            rows = collect(envs, 10)
        assert rows.obs[:, 0].argmax(-1).tolist() == [*range(10), 9]
        assert rows.episodes[0].end == end and rows.discount[-1, 0] == discount


def test_action_specs_of_the_three_kinds():
    specs = [probe_spec(EnvConfig(id=f"ludus/Identity{k}-v0")).action for k in ("", "Box", "Multi")]
    assert specs == [Discrete(4), Continuous((1,), (-1.0,), (1.0,)), MultiDiscrete((3, 2))]


@pytest.mark.parametrize(
    ("id", "code", "says"),
    [
        ("CartPol-v1", "E201", "did you mean  CartPole-v1"),
        ("ludus/Identiy-v0", "E201", "did you mean  ludus/Identity-v0"),
        ("no_such_module:Env", "E201", "cannot import no_such_module"),
        ("ludus.envs.test_envs:Identit", "E201", "did you mean  Identity"),
    ],
)
def test_an_unknown_environment_is_answered_with_the_nearest(id, code, says):
    with pytest.raises(LudusError) as caught:
        probe_spec(EnvConfig(id=id))
    assert caught.value.code == code and says in str(caught.value) and caught.value.fix


def test_constructor_arguments_reach_the_environment_or_are_refused(module_of):
    name = module_of(WALK)
    with pytest.raises(LudusError, match="E201") as caught:
        probe_spec(EnvConfig(id=f"{name}:Walk", args={"sise": 3}))
    assert "sise" in caught.value.what and "env.args" in caught.value.fix
    with pytest.raises(LudusError, match="not a gymnasium"):
        probe_spec(EnvConfig(id=f"{name}:not_an_env"))
    spec = probe_spec(EnvConfig(id="FrozenLake-v1", args={"map_name": "8x8"}))
    assert spec.obs.shape == (64,)


FAULTS = {
    "raise": ("E205", "ZeroDivisionError in step(): the test environment fails on request"),
    "shape": ("E203", "got shape (3,) float32, expected shape (2,) float32"),
    "dtype": ("E203", "expected shape (2,) float32"),
    "nan": ("E203", "observation holds nan"),
    "reward_nan": ("E202", "reward is nan"),
    "reward_type": ("E202", "expected a number"),
    "tuple": ("E202", "step() returned 4 values, expected five"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_environment_is_named_with_got_and_expected(fault):
    code, says = FAULTS[fault]
    cfg = EnvConfig(id="ludus/Faulty-v0", args={"fault": fault, "after": 2}, num=2)
    with make_envs(cfg, seed=1) as envs:
        rows = collect(envs, 2)
        assert rows.mask.all()
        envs.send(np.zeros(2, int))
        with pytest.raises(LudusError) as caught:
            envs.recv()
    assert caught.value.code == code and says in caught.value.what
    assert "environment 0 of" in caught.value.where and caught.value.fix


def test_wrappers_by_name_are_applied_in_order():
    wrappers = [{"name": "Repeat", "options": {"times": 2}}, {"name": "FlattenObservation"}]
    cfg = EnvConfig(id="ludus/Counter-v0", args={"length": 5}, wrappers=wrappers)
    with make_envs(cfg, seed=1) as envs:
        rows = collect(envs, 3)
    assert rows.raw_reward[:, 0].tolist() == [3, 7, 5]  # the last one stopped at the end
    assert rows.episodes[0].length == 3 and rows.episodes[0].score == 15


def test_wrappers_of_ones_own_and_mistakes_in_them(module_of):
    name = module_of(
        """
        import gymnasium as gym
        class Double(gym.RewardWrapper):
            def reward(self, reward):
                return 2 * reward
        """
    )
    counter = {"id": "ludus/Counter-v0"}
    with make_envs(EnvConfig(**counter, wrappers=[{"name": f"{name}:Double"}]), seed=1) as envs:
        assert collect(envs, 2).raw_reward[:, 0].tolist() == [2, 4]
    for wrapper, code, says in [
        ({"name": "FlatenObservation"}, "E201", "did you mean  FlattenObservation"),
        ({"name": f"{name}:Triple"}, "E201", "cannot be imported"),
        ({"name": "Repeat", "options": {"tims": 2}}, "E101", "tims"),
        ({"name": "FrameStackObservation"}, "E104", "env.stack=4"),
        ({"name": "NormalizeReward"}, "E104", "env.normalize.reward=true"),
    ]:
        with pytest.raises(LudusError) as caught:
            probe_spec(EnvConfig(**counter, wrappers=[wrapper]))
        assert caught.value.code == code and says in str(caught.value)


@pytest.mark.accept(120)
def test_observations_can_be_obscured_with_a_probability():
    counter = {"id": "ludus/Counter-v0", "args": {"length": 4}}
    shares = {}
    for probability in (0.0, 0.3, 1.0):
        wrapper = {"name": "Obscure", "options": {"probability": probability}}
        with make_envs(EnvConfig(**counter, wrappers=[wrapper]), seed=1) as envs:
            obs, again = collect(envs, 600).obs, collect(envs, 600).obs
        np.testing.assert_array_equal(obs, again)  # seeded with the environment
        shares[probability] = float((obs[:, 0, 1] == 0).mean())
    assert shares[0.0] == 0 and shares[1.0] == 1 and 0.22 < shares[0.3] < 0.38


def test_the_registered_limit_is_replaced_not_added():
    limits = [
        probe_spec(EnvConfig(id="CartPole-v1", max_episode_steps=n)).max_episode_steps
        for n in (None, 900)
    ]
    assert limits == [500, 900]
    cfg = EnvConfig(id="MountainCar-v0", max_episode_steps=230)
    with make_envs(cfg, seed=1) as envs:
        assert collect(envs, 230, actions=[[1]] * 230).episodes[0].length == 230
    inside = EnvConfig(
        id="MountainCar-v0", wrappers=[{"name": "Repeat", "options": {"times": 100}}]
    )
    with make_envs(inside, seed=1) as envs:  # the registered limit stays where it was registered
        assert collect(envs, 2, actions=[[1]] * 2).episodes[0].length == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"num": 0}, {"num": "many"}, {"num": True}, {"num": 1.5}, {"id": ""}, {"stack": 0},
        {"reward_clip": "hard"}, {"workers": -1}, {"groups": 2}, {"timeout": 0}, {"nmu": 3},
        {"normalize": {"obs": "1"}}, {"image_layout": "whc"}, {"wrappers": [{"options": {}}]},
    ],
)  # fmt: skip
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(ValidationError):
        EnvConfig(**{"id": "CartPole-v1", **wrong})


@pytest.mark.parametrize(
    ("idle", "cure"),
    [
        ({"reward_clamp": 2.5}, {"reward_clip": "clamp"}),
        ({"normalize": {"clip": 5.0}}, {"normalize": {"clip": 5.0, "obs": True}}),
        ({"normalize": {"gamma": 0.9}}, {"normalize": {"gamma": 0.9, "reward": True}}),
    ],
)
def test_settings_without_effect_are_refused(idle, cure):
    with pytest.raises(ValidationError, match="has no effect"):
        EnvConfig(id="CartPole-v1", **idle)
    assert EnvConfig(**{"id": "CartPole-v1", **idle, **cure})


def test_settings_survive_a_round_trip():
    cfg = EnvConfig(
        id="CartPole-v1",
        num="auto",
        reward_clip=None,
        wrappers=[{"name": "Repeat", "options": {"times": 2}}],
        reward_scale="running_max",
    )
    assert cfg.num_envs == 8 and cfg.reward_clip == "none"
    assert EnvConfig.model_validate(cfg.model_dump(mode="json")) == cfg


def test_making_environments_leaves_gymnasiums_registry_alone():
    before = set(gym.registry)
    for id in PROBES:
        if "Faulty" not in id:
            probe_spec(EnvConfig(id=id))
    assert set(gym.registry) == before
