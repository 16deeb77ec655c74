"""Running statistics: equal to those of all data at once, dummy rows and streams respected."""

import numpy as np
import pytest
import torch

from ludus.nets import Normalizer
from ludus.types import ArraySpec, Discrete, EnvSpec, Rows

SPEC = EnvSpec("probe", ArraySpec((3,)), Discrete(2))


def rows(seed, steps=7, batch=4, scale=3.0):
    """Random rows with episode ends, each followed by a dummy row full of nonsense."""
    g = np.random.default_rng(seed)
    obs = torch.from_numpy(g.normal(5, scale, (steps + 1, batch, 3)).astype(np.float32))
    reward = torch.from_numpy(g.normal(1, 2, (steps, batch)).astype(np.float32))
    last, mask = (torch.zeros(steps, batch, dtype=torch.bool) for _ in range(2))
    mask[:] = True
    for b in range(batch):
        for t in range(steps - 1):
            if mask[t, b] and g.random() < 0.25:
                last[t, b], mask[t + 1, b] = True, False
    obs[:-1][~mask] = 1e6
    reward[~mask] = 1e6
    return Rows(
        obs=obs, action=torch.zeros(steps, batch, dtype=torch.long), reward=reward,
        raw_reward=reward, discount=torch.where(last & (obs[:-1, :, 0] > 5), 0.0, 1.0), last=last,
        first=torch.zeros(steps + 1, batch, dtype=torch.bool), mask=mask,
    )  # fmt: skip


def test_statistics_equal_those_of_all_masked_rows_at_once():
    norm, seen = Normalizer(SPEC, 4), []
    for seed in range(5):
        r = rows(seed)
        norm.observe(r)
        seen.append(r.obs[:-1][r.mask])
    everything = torch.cat(seen).double()
    torch.testing.assert_close(norm.mean_0, everything.mean(0))
    torch.testing.assert_close(norm.var_0, everything.var(0, correction=0))
    assert norm.count_0.item() == len(everything)
    y = norm.obs(everything.float())
    torch.testing.assert_close(y.mean(0), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(y.std(0, correction=0), torch.ones(3), atol=1e-4, rtol=0)
    assert y.dtype == torch.float32


def test_welford_survives_a_large_offset():
    norm = Normalizer(SPEC, 4, reward=False)
    everything = []
    for seed in range(20):
        r = rows(seed, scale=0.5)
        r = r._replace(obs=torch.where(r.obs == 1e6, r.obs, r.obs + 10_000))
        norm.observe(r)
        everything.append(r.obs[:-1][r.mask].double())
    torch.testing.assert_close(norm.var_0, torch.cat(everything).var(0, correction=0))


def test_returns_run_over_chunks_and_restart_after_episode_ends():
    norm, gamma = Normalizer(SPEC, 4, gamma=0.9), 0.9
    running, seen = [0.0] * 4, []
    for seed in range(5):
        r = rows(seed)
        norm.observe(r)
        for t in range(7):
            for b in range(4):
                if r.mask[t, b]:
                    running[b] = gamma * running[b] + float(r.reward[t, b])
                    seen.append(running[b])
                    if r.last[t, b]:
                        running[b] = 0.0
    assert norm.var_return.item() == pytest.approx(np.var(seen), rel=1e-9)
    assert norm.count_return.item() == len(seen)
    want = 2.0 / np.sqrt(np.var(seen) + 1e-8)
    assert norm.reward(torch.tensor(2.0)).item() == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize("soft", [True, False])
def test_a_return_ends_with_a_soft_terminal_and_with_an_episode(soft):
    norm = Normalizer(SPEC, 1, gamma=0.5)
    r = rows(0, steps=3, batch=1)
    r = r._replace(
        reward=torch.ones(3, 1), last=torch.tensor([[False], [not soft], [False]]),
        mask=torch.ones(3, 1).bool(),
        discount=torch.tensor([[1.0], [0.0 if soft else 1.0], [1.0]]),
    )  # fmt: skip
    norm.observe(r)
    assert norm.mean_return.item() == pytest.approx((1 + 1.5 + 1) / 3)


def test_break_streams_forgets_the_running_returns_only():
    norm = Normalizer(SPEC, 4)
    norm.observe(rows(0))
    before = norm.var_return.clone()
    assert norm.running_return.ne(0).any()
    norm.break_streams()
    assert norm.running_return.eq(0).all()
    assert torch.equal(norm.var_return, before)


def test_columns_of_several_sources_keep_apart():
    norm = Normalizer(SPEC, 8)
    norm.observe(rows(0), first_env=4)
    assert norm.running_return[:4].eq(0).all()
    assert norm.running_return[4:].ne(0).any()


def test_before_any_data_nothing_changes_but_the_clip():
    norm = Normalizer(SPEC, 1, clip=10.0)
    x = torch.tensor([[1.0, -20.0, 30.0]])
    assert norm.obs(x).tolist() == [[1.0, -10.0, 10.0]]
    assert norm.reward(torch.tensor([-50.0, 3.0])).tolist() == [-10.0, 3.0]


def test_rows_without_a_single_real_one_change_nothing():
    norm = Normalizer(SPEC, 4)
    norm.observe(rows(0))
    before = {k: v.clone() for k, v in norm.state_dict().items() if k != "running_return"}
    r = rows(1)
    norm.observe(r._replace(mask=torch.zeros_like(r.mask)))
    for key, value in before.items():
        assert torch.equal(norm.state_dict()[key], value), key


def test_bytes_are_left_alone_on_request_and_stacks_are_scaled_frame_by_frame():
    obs = {
        "image": ArraySpec((8, 8), "uint8", layout="hw"),
        "speed": ArraySpec((2,), "float32", stack=3),
    }
    norm = Normalizer(EnvSpec("probe", obs, Discrete(2)), 4, reward=False, integers=False)
    r = rows(0)
    image = torch.full((8, 4, 8, 8), 7, dtype=torch.uint8)
    norm.observe(r._replace(obs={"speed": r.obs[..., :2], "image": image}))
    stacked = torch.randn(5, 3, 2)
    y = norm.obs({"speed": stacked, "image": image[0]})
    assert y["image"] is not None
    assert torch.equal(y["image"], image[0])
    assert y["speed"].shape == (5, 3, 2)
    one = norm.obs({"speed": stacked[:, 1], "image": image[0]})
    torch.testing.assert_close(y["speed"][:, 1], one["speed"])
    assert not torch.allclose(y["speed"], stacked)


def test_switched_off_parts_hand_through():
    norm = Normalizer(SPEC, 4, obs=False, reward=False)
    norm.observe(rows(0))
    x = torch.tensor([[99.0, 1.0, 2.0]])
    assert norm.obs(x) is x
    assert norm.reward(x) is x
    assert norm.state_dict() == {}


def test_statistics_travel_with_the_state_dict_and_are_no_parameters():
    norm, other = Normalizer(SPEC, 4), Normalizer(SPEC, 4)
    norm.observe(rows(0))
    other.load_state_dict(norm.state_dict())
    x = torch.randn(6, 3)
    assert torch.equal(other.obs(x), norm.obs(x))
    assert torch.equal(other.reward(x), norm.reward(x))
    norm.observe(rows(1))
    other.observe(rows(1))
    for key, value in norm.state_dict().items():
        assert torch.equal(other.state_dict()[key], value), key
    assert list(norm.parameters()) == []


def test_rows_of_the_host_reach_statistics_elsewhere():
    """As on a GPU, whose learner gets its rows from environments in host memory."""
    norm = Normalizer(SPEC, 4, reward=False).to("meta")
    norm.observe(rows(0))
    assert norm.mean_0.device.type == "meta" and norm.mean_0.shape == (3,)
