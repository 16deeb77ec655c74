"""The six rules about rows and episode ends, each with the case it stands for."""

import numpy as np
import pytest
import torch

from ludus import ops
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs
from tests.envs.recorder import collect


def counter(**settings):
    args = settings.pop("args", {"length": 3})
    return EnvConfig(id="ludus/Counter-v0", args=args, **settings)


def test_an_episode_end_gives_final_observation_then_a_masked_row_then_first():
    with make_envs(counter(), seed=1) as envs:
        rows = collect(envs, 9)
    assert rows.obs[:, 0, 0].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert rows.last[:, 0].tolist() == [0, 0, 1, 0, 0, 0, 1, 0, 0]
    assert rows.mask[:, 0].tolist() == [1, 1, 1, 0, 1, 1, 1, 0, 1]
    assert rows.first[:, 0].tolist() == [1, 0, 0, 0, 1, 0, 0, 0, 1, 0]
    assert rows.dummy[:, 0].tolist() == [0, 0, 0, 1, 0, 0, 0, 1, 0, 0]
    assert rows.reward[:, 0].tolist() == [1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert rows.discount[:, 0].tolist() == [1, 1, 0, 1, 1, 1, 0, 1, 1]
    # The final observation belongs to the old episode, the next one to a new draw.
    tags = rows.obs[:, 0, 1]
    assert len(set(tags[:4])) == 1 and len(set(tags[4:8])) == 1 and tags[3] != tags[4]


def test_rule_1_a_lost_life_is_a_soft_terminal_without_reset_or_dummy_row():
    lives = EnvConfig(id="ludus/Lives-v0", args={"lives": 3, "steps_per_life": 2})
    with make_envs(lives, seed=1) as envs:
        rows = collect(envs, 7)
    assert rows.discount[:, 0].tolist() == [1, 0, 1, 0, 1, 0, 1]
    assert rows.last[:, 0].tolist() == [0, 0, 0, 0, 0, 1, 0]
    assert rows.mask[:, 0].tolist() == [1, 1, 1, 1, 1, 1, 0]
    assert rows.first[:, 0].tolist() == [1, 0, 0, 0, 0, 0, 0, 1]
    # The score is of the whole game, whatever the learner makes of its lives.
    assert [(e.score, e.length, e.end) for e in rows.episodes] == [(21.0, 6, "terminated")]


@pytest.mark.parametrize("workers", [0, 1])
def test_rule_2_a_step_limit_imitates_the_environments_own_end(workers):
    cfg = counter(args={"length": 50}, max_episode_steps=2, workers=workers)
    with make_envs(cfg, seed=1) as envs:
        assert envs.spec.max_episode_steps == 2
        rows = collect(envs, 6)
    assert rows.obs[:, 0, 0].tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert rows.last[:, 0].tolist() == [0, 1, 0, 0, 1, 0]
    assert rows.mask[:, 0].tolist() == [1, 1, 0, 1, 1, 0]
    assert rows.discount.min() == 1.0  # a truncation: bootstrap from the final observation
    assert [(e.length, e.end) for e in rows.episodes] == [(2, "truncated")] * 2


def test_rule_2_each_environment_reaches_the_limit_by_its_own_count():
    """Environments whose episodes end at other steps: none is cut early or late."""
    cfg = EnvConfig(id="CartPole-v1", num=3, max_episode_steps=12)
    with make_envs(cfg, seed=1) as envs:
        rows = collect(envs, 300)
    assert {e.end for e in rows.episodes} == {"truncated", "terminated"}
    assert all(e.length == 12 for e in rows.episodes if e.end == "truncated")
    assert max(e.length for e in rows.episodes) == 12


def test_rule_2_max_stuck_truncates_after_steps_without_reward():
    # Identity rewards 1 for the shown number: answering wrong gets stuck.
    cfg = EnvConfig(id="ludus/Identity-v0", args={"n": 2, "length": 99}, max_stuck=3)
    with make_envs(cfg, seed=1) as envs:
        envs.reset(0)
        step, lengths, wrong = envs.observe(), [], []
        for t in range(14):
            shown = int(step.obs[0].argmax())
            right = t == 2  # one reward on the way starts the count again
            envs.send(np.array([shown if right else 1 - shown]))
            step = envs.recv()
            lengths += [(e.length, e.end) for e in step.episodes]
            wrong.append((bool(step.last[0]), bool(step.mask[0]), float(step.discount[0])))
    assert lengths == [(6, "truncated"), (3, "truncated"), (3, "truncated")]
    assert wrong[5] == (True, True, 1.0) and wrong[6] == (False, False, 1.0)


def test_rule_2_and_5_a_barrier_cuts_every_running_episode_and_scores_none():
    with make_envs(counter(num=2, args={"length": 4}), seed=1) as envs:
        rows = collect(envs, 3)
        assert rows.episodes == []
        envs.reset(1)
        again = envs.observe()
        assert [(e.env, e.score, e.length, e.end) for e in again.episodes] == [
            (0, 6.0, 3, "checkpoint"),
            (1, 6.0, 3, "checkpoint"),
        ]
        assert again.first.all() and not again.mask.any() and not again.dummy.any()
        assert again.obs[:, 0].tolist() == [0, 0]
        assert envs.observe().episodes == []  # told once
        # An episode that had already ended is not cut a second time.
        rows = collect(envs, 4, barrier=2)
        assert [e.end for e in rows.episodes] == ["terminated"] * 2
        envs.reset(3)
        assert envs.observe().episodes == []


def test_rule_3_an_unroll_across_a_truncation_equals_two_unrolls():
    cfg = counter(args={"length": 4, "terminates": False})
    with make_envs(cfg, seed=1) as envs:
        rows = collect(envs, 9)
    assert rows.last[3, 0] and not rows.mask[4, 0]
    rng = torch.Generator().manual_seed(3)
    value, rho = (torch.rand(n, 1, generator=rng) + 0.5 for n in (10, 9))
    reward, discount, last = (
        torch.from_numpy(x) for x in (rows.reward, 0.9 * rows.discount, rows.last)
    )
    whole = ops.vtrace(value, reward, discount, rho, last)
    parts = [(0, 4), (5, 9)]
    for a, b in parts:
        part = ops.vtrace(value[a : b + 1], reward[a:b], discount[a:b], rho[a:b], last[a:b])
        torch.testing.assert_close(whole.vs[a:b], part.vs)
        torch.testing.assert_close(whole.advantage[a:b], part.advantage)
    gae = ops.gae(reward, discount, value, 0.95, last)
    for a, b in parts:
        part = ops.gae(reward[a:b], discount[a:b], value[a : b + 1], 0.95, last[a:b])
        torch.testing.assert_close(gae[a:b], part)


@pytest.mark.parametrize("num", [1, 3])
def test_rule_4_rows_with_mask_are_the_steps_the_environments_took(num):
    with make_envs(counter(num=num), seed=1) as envs:
        rows = collect(envs, 20)
        cut = [int(n) for n in rows.mask.sum(0)]
        envs.reset(1)
        episodes = rows.episodes + envs.observe().episodes
    by_env = [sum(e.length for e in episodes if e.env == i) for i in range(num)]
    assert by_env == cut == [15] * num
    assert not rows.reward[~rows.mask].any()


BACKENDS = {
    "python": {"native": False},
    "native": {"native": True},
    "workers": {"workers": 2},
}


@pytest.mark.parametrize("backend", BACKENDS)
def test_rule_6_environment_0_does_not_depend_on_the_others(backend):
    alone = EnvConfig(id="CartPole-v1", native=False)
    many = EnvConfig(id="CartPole-v1", num=4, **BACKENDS[backend])
    with make_envs(alone, seed=3) as envs:
        one, seed = collect(envs, 60), envs.seeds
    with make_envs(many, seed=3) as envs:
        four = collect(envs, 60)
        assert envs.seeds[:1] == seed and len(set(envs.seeds)) == 4
    assert one.episodes  # resets are part of what must agree
    for name in ("obs", "reward", "last", "mask", "discount"):
        np.testing.assert_array_equal(getattr(one, name)[:, 0], getattr(four, name)[:, 0])
    assert not np.array_equal(four.obs[:, 0], four.obs[:, 1])


def test_seeds_differ_by_role_env_and_barrier_and_follow_from_the_run_seed():
    cfg = counter(num=3)
    seen = []
    for seed, role, first_env in [(1, "env", 0), (1, "eval", 0), (2, "env", 0), (1, "env", 3)]:
        with make_envs(cfg, seed=seed, role=role, first_env=first_env) as envs:
            for barrier in (0, 1):
                envs.reset(barrier)
                seen += envs.seeds
    assert len(set(seen)) == len(seen) == 24
    with make_envs(counter(num=6), seed=1) as envs:
        envs.reset(0)
        assert envs.seeds == seen[:3] + seen[18:21]


def test_the_same_barrier_repeats_the_same_episodes_and_another_does_not():
    cfg = EnvConfig(id="CartPole-v1", num=2)
    with make_envs(cfg, seed=1) as envs:
        first, other, again = (collect(envs, 30, barrier=b) for b in (4, 5, 4))
    np.testing.assert_array_equal(first.obs, again.obs)
    assert not np.array_equal(first.obs, other.obs)
