"""The adapter apart from episode ends: groups, actions, masks, rewards, ownership of arrays."""

import numpy as np
import pytest

from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs
from ludus.errors import LudusError
from tests.envs.recorder import collect


def config(id, **settings):
    return EnvConfig(id=id, **settings)


@pytest.mark.parametrize("settings", [{"native": True}, {"native": False}, {"workers": 2}])
def test_two_groups_in_flight_equal_one_group(settings):
    whole = config("CartPole-v1", num=6, **settings)
    with make_envs(whole, seed=2) as envs:
        expected = collect(envs, 40)
    with make_envs(whole.model_copy(update={"groups": 2}), seed=2) as envs:
        assert envs.groups == [slice(0, 3), slice(3, 6)]
        envs.reset(0)
        seen = [[envs.observe(g).obs] for g in (0, 1)]
        rngs = [np.random.default_rng([5, i]) for i in range(6)]
        for _ in range(40):
            actions = np.concatenate([rng.integers(0, 2, 1) for rng in rngs])
            envs.send(actions[:3], 0)
            envs.send(actions[3:], 1)
            for g in (1, 0):  # answered in the other order
                seen[g].append(envs.recv(g).obs)
    np.testing.assert_array_equal(expected.obs, np.concatenate([np.stack(s) for s in seen], 1))


def test_one_worker_may_serve_both_groups_in_any_order():
    cfg = config("ludus/Counter-v0", num=3, groups=2, workers=1)
    with make_envs(cfg, seed=2) as envs:
        envs.reset(0)
        envs.send(np.zeros(1, int), 0)
        envs.send(np.zeros(2, int), 1)
        late = envs.recv(1)
        early = envs.recv(0)
        envs.send(np.zeros(2, int), 1)
        assert late.obs[:, 0].tolist() == [1, 1] and early.obs[:, 0].tolist() == [1]
        assert envs.recv(1).obs[:, 0].tolist() == [2, 2]


def test_returned_arrays_belong_to_the_caller():
    with make_envs(config("CartPole-v1", num=4), seed=1) as envs:
        envs.reset(0)
        first = envs.observe()
        kept = first.obs.copy()
        envs.send(np.zeros(4, int))
        step = envs.recv()
        np.testing.assert_array_equal(first.obs, kept)
        for array in (step.last, step.dummy, step.first, step.mask):
            array[:] = True  # must not confuse the adapter
        envs.send(np.zeros(4, int))
        assert envs.recv().mask.all()


@pytest.mark.parametrize("bad", [-1, 2, 2**40])
def test_an_invalid_discrete_action_is_refused_with_env_and_value(bad):
    with make_envs(config("CartPole-v1", num=3), seed=1, first_env=10) as envs:
        envs.reset(0)
        with pytest.raises(LudusError) as caught:
            envs.send(np.array([0, bad, 1]))
        assert caught.value.code == "E204"
        assert str(bad) in caught.value.what and "environment 11 of" in caught.value.where
        envs.send(np.array([0, 1, 1]))  # nothing was stepped, so the run could go on
        assert envs.recv().mask.all()


@pytest.mark.parametrize("bad", [np.zeros(2), np.zeros((3, 1), int), np.zeros(3, np.float32)])
def test_actions_of_the_wrong_shape_or_type_are_refused(bad):
    with make_envs(config("CartPole-v1", num=3), seed=1) as envs:
        envs.reset(0)
        with pytest.raises(LudusError, match="E204"):
            envs.send(bad)


def test_an_action_that_will_be_ignored_may_hold_anything():
    with make_envs(config("ludus/Counter-v0", args={"length": 1}), seed=1) as envs:
        envs.reset(0)
        envs.send(np.array([0]))
        assert envs.recv().dummy.all()
        envs.send(np.array([77]))
        assert envs.recv().first.all()


def test_continuous_actions_are_clipped_to_the_box_and_must_be_finite():
    cfg = config("ludus/IdentityBox-v0", num=2, args={"size": 1})
    with make_envs(cfg, seed=1) as envs:
        envs.reset(0)
        shown = envs.observe().obs[:, 0]
        envs.send(np.array([[50.0], [-50.0]]))
        reward = envs.recv().reward
        np.testing.assert_allclose(reward, 1 - np.abs(np.array([1.0, -1.0]) - shown), atol=1e-6)
        with pytest.raises(LudusError, match="not finite"):
            envs.send(np.array([[0.0], [np.nan]]))


def test_discrete_actions_that_start_elsewhere_are_shifted(module_of):
    name = module_of(
        """
        import gymnasium as gym
        class Shifted(gym.Env):
            observation_space = gym.spaces.Discrete(3, start=5)
            action_space = gym.spaces.Discrete(3, start=5)
            def reset(self, *, seed=None, options=None):
                super().reset(seed=seed)
                return 5, {}
            def step(self, action):
                assert action in self.action_space
                return action, float(action), False, False, {}
        """
    )
    with make_envs(config(f"{name}:Shifted"), seed=1) as envs:
        rows = collect(envs, 3, actions=[[0], [1], [2]])
        with pytest.raises(LudusError, match="action 3 is invalid"):
            envs.send(np.array([3]))
    assert rows.reward[:, 0].tolist() == [5, 6, 7]
    assert rows.obs[:, 0].argmax(-1).tolist() == [0, 0, 1, 2]


@pytest.mark.parametrize("source", ["info", "method"])
@pytest.mark.parametrize("workers", [0, 1])
def test_action_masks_are_handed_on_and_enforced(source, workers):
    args = {"source": source, "length": 4}
    cfg = config("ludus/MaskedBandit-v0", num=2, args=args, workers=workers)
    with make_envs(cfg, seed=1) as envs:
        assert envs.spec.has_action_mask and envs.spec.mask_width == 4
        envs.reset(0)
        step, rewards = envs.observe(), []
        for _ in range(9):
            np.testing.assert_array_equal(step.action_mask[~step.dummy], step.obs[~step.dummy] > 0)
            envs.send(3 - step.action_mask[:, ::-1].argmax(1))
            step = envs.recv()
            rewards.append(step.reward[step.mask])
        assert np.concatenate(rewards).min() == 1.0
        while step.action_mask.all():
            envs.send(3 - step.action_mask[:, ::-1].argmax(1))
            step = envs.recv()
        env, action = np.argwhere(~step.action_mask)[0]
        wrong = 3 - step.action_mask[:, ::-1].argmax(1)
        wrong[env] = action
        with pytest.raises(LudusError, match="action mask allows"):
            envs.send(wrong)


def test_multi_discrete_masks_cover_all_parts(module_of):
    name = module_of(
        """
        import gymnasium as gym, numpy as np
        class Pair(gym.Env):
            observation_space = gym.spaces.Discrete(2)
            action_space = gym.spaces.MultiDiscrete([2, 3])
            def info(self):
                return {"action_mask": (np.array([1, 0]), np.array([0, 1, 1]))}
            def reset(self, *, seed=None, options=None):
                return 0, self.info()
            def step(self, action):
                return 0, float(action.sum()), False, False, self.info()
        """
    )
    with make_envs(config(f"{name}:Pair"), seed=1) as envs:
        assert envs.spec.mask_width == 5 and envs.spec.action_shape == (2,)
        rows = collect(envs, 1, actions=[[[0, 2]]])
        assert rows.reward[0, 0] == 2.0
        for wrong in ([1, 1], [0, 0], [0, 3]):
            with pytest.raises(LudusError, match="is invalid"):
                envs.send(np.array([wrong]))


CLIPS = {
    "none": [1, 2, 3, 4],
    "sign": [1, 1, 1, 1],
    "clamp": [1, 2, 2.5, 2.5],
    "soft_asymmetric": [5 * np.tanh(r / 5) for r in (1, 2, 3, 4)],
}


@pytest.mark.accept(118)
@pytest.mark.parametrize("clip", CLIPS)
def test_rewards_are_clipped_for_the_learner_only(clip):
    bound = {"reward_clamp": 2.5} if clip == "clamp" else {}
    cfg = config("ludus/Counter-v0", args={"length": 4}, reward_clip=clip, **bound)
    with make_envs(cfg, seed=1) as envs:
        rows = collect(envs, 4)
    np.testing.assert_allclose(rows.reward[:, 0], CLIPS[clip], rtol=1e-6)
    assert rows.raw_reward[:, 0].tolist() == [1, 2, 3, 4]
    assert rows.episodes[0].score == 10.0


@pytest.mark.accept(118)
def test_losses_weigh_less_than_gains_under_the_soft_asymmetric_clip():
    settings = {"reward_scale": -1.0, "args": {"length": 4}}
    clips = {}
    for clip in CLIPS:
        cfg = config("ludus/Counter-v0", reward_clip=clip, **settings)
        with make_envs(cfg, seed=1) as envs:
            clips[clip] = collect(envs, 4).reward[:, 0]
    expected = [-0.3 * 5 * np.tanh(r / 5) for r in (1, 2, 3, 4)]
    np.testing.assert_allclose(clips["soft_asymmetric"], expected, rtol=1e-6)
    assert clips["sign"].tolist() == clips["clamp"].tolist() == [-1] * 4
    assert clips["none"].tolist() == [-1, -2, -3, -4]


@pytest.mark.accept(119)
def test_rewards_can_be_divided_by_the_largest_seen_so_far():
    cfg = config("ludus/Counter-v0", args={"length": 3}, reward_scale="running_max", num=2)
    with make_envs(cfg, seed=1) as envs:
        rows = collect(envs, 7)
        assert rows.reward[:, 0].tolist() == [1, 1, 1, 0, *np.float32([1 / 3, 2 / 3, 1])]
        assert rows.raw_reward[:3, 0].tolist() == [1, 2, 3]
        state = envs.state()
    with make_envs(cfg, seed=1) as envs:  # the maximum goes on from a checkpoint
        envs.load(state)
        assert collect(envs, 2).reward[:, 0].tolist() == np.float32([1 / 3, 2 / 3]).tolist()


def test_infos_of_ended_episodes_are_kept(module_of):
    name = module_of(
        """
        import gymnasium as gym
        class Won(gym.Env):
            observation_space = gym.spaces.Discrete(2)
            action_space = gym.spaces.Discrete(2)
            def reset(self, *, seed=None, options=None):
                return 0, {}
            def step(self, action):
                return 0, 1, True, False, {"is_success": True, "note": "text"}
        """
    )
    for workers in (0, 1):
        with make_envs(config(f"{name}:Won", num=2, workers=workers), seed=1) as envs:
            episodes = collect(envs, 1).episodes
        assert [e.info for e in episodes] == [{"is_success": 1.0}] * 2
