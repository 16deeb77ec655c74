"""QNet as a whole, and initialisation from one generator."""

import copy
import math
import pickle

import pytest
import torch
from torch import nn

from ludus.errors import LudusError
from ludus.nets import (
    CNN,
    MLP,
    Auto,
    Categorical,
    Custom,
    Implicit,
    LSTMCore,
    QNet,
    Quantile,
    Scalar,
    ValueHead,
    build_policy_head,
    build_torso,
    initialize,
    register_torso,
)
from ludus.ops import frozen
from ludus.types import ArraySpec, Continuous, Discrete, EnvSpec, MultiDiscrete

SPEC = EnvSpec("probe", ArraySpec((4,)), Discrete(3))


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("head", [Scalar(), Categorical(), Quantile(quantiles=5), Implicit(taus=4)])
def test_a_mask_forbids_in_q_only(head):
    net, x = QNet(SPEC, MLP(), head), torch.randn(2, 4)
    mask = torch.tensor([[True, False, True], [False, True, False]])
    out = net(x, None, action_mask=mask)
    free = net(x, None)
    assert torch.equal(out.dist, free.dist)
    assert torch.equal(out.q == -torch.inf, ~mask)
    assert torch.equal(out.q[mask], free.q[mask])
    assert out.q.argmax(-1)[1] == 1


def test_images_and_trees_reach_the_head():
    obs = {"image": ArraySpec((10, 10, 4), "uint8", layout="hwc"), "speed": ArraySpec((2,))}
    net = QNet(EnvSpec("probe", obs, Discrete(5)), Auto(), Scalar(dueling=True, hidden=32))
    x = {"image": torch.zeros(3, 10, 10, 4, dtype=torch.uint8), "speed": torch.zeros(3, 2)}
    assert net(x).q.shape == (3, 5)


def test_nets_can_be_copied_pickled_and_run_with_detached_parameters():
    net, x = QNet(SPEC, MLP(activation="elu"), Implicit(dueling=True)), torch.randn(2, 4)
    want = net(x).q
    assert torch.equal(copy.deepcopy(net)(x).q, want)
    assert torch.equal(pickle.loads(pickle.dumps(net))(x).q, want)
    still = frozen(net)(x).q
    assert torch.equal(still, want)
    assert not still.requires_grad


@pytest.mark.parametrize("action", [Continuous((2,), (-1.0,) * 2, (1.0,) * 2), MultiDiscrete((2,))])
def test_other_actions_are_refused(action):
    with pytest.raises(LudusError, match="E204"):
        QNet(EnvSpec("probe", ArraySpec((4,)), action), MLP(), Scalar())


def everything():
    image = ArraySpec((12, 12), "uint8", layout="hw")
    return nn.ModuleDict(
        {
            "q": QNet(SPEC, MLP(), Implicit(dueling=True, noisy=0.5, hidden=8)),
            "cnn": build_torso(CNN(hidden=16), image),
            "core": LSTMCore(3, 5),
            "policy": build_policy_head(6, Continuous((2,), (-1.0,) * 2, (1.0,) * 2)),
            "norm": nn.LayerNorm(4),
            "attention": nn.MultiheadAttention(4, 2),
            "embedding": nn.Embedding(5, 3),
        }
    )


@pytest.mark.parametrize("scheme", ["default", "orthogonal"])
def test_equal_generators_give_equal_weights_whatever_the_global_one_did(scheme):
    torch.manual_seed(1)
    one = everything()
    torch.manual_seed(2)
    other = everything()
    before = torch.get_rng_state()
    initialize(one, rng(7), scheme)
    initialize(other, rng(7), scheme)
    assert torch.equal(torch.get_rng_state(), before)
    for (name, a), (_, b) in zip(one.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    initialize(other, rng(8), scheme)
    same = [
        n
        for (n, a), (_, b) in zip(one.named_parameters(), other.named_parameters(), strict=True)
        if torch.equal(a, b)
    ]
    constant = ("bias", "sigma", "log_std", "norm")
    assert all(any(c in name for c in constant) for name in same)


def test_default_is_torchs_own_range():
    torso = build_torso(MLP(hidden=(200, 50)), ArraySpec((25,)))
    initialize(torso, rng())
    for layer, inputs in zip(torso.layers, (25, 200), strict=True):
        for p in (layer.weight, layer.bias):
            assert p.abs().max().item() <= 1 / math.sqrt(inputs)
            assert p.std().item() == pytest.approx(1 / math.sqrt(3 * inputs), rel=0.2)


def test_orthogonal_uses_each_layers_gain():
    net = nn.ModuleDict(
        {
            "torso": build_torso(MLP(hidden=(8, 8)), ArraySpec((8,))),
            "policy": build_policy_head(8, Discrete(3)),
            "value": ValueHead(8),
        }
    )
    initialize(net, rng(), "orthogonal")
    eye = torch.eye(8)
    for layer in net["torso"].layers:
        torch.testing.assert_close(layer.weight @ layer.weight.T, 2 * eye, atol=1e-5, rtol=0)
        assert layer.bias.eq(0).all()
    policy, value = net["policy"].linear.weight, net["value"].linear.weight
    torch.testing.assert_close(policy @ policy.T, 1e-4 * eye[:3, :3], atol=1e-8, rtol=0)
    torch.testing.assert_close(value @ value.T, torch.ones(1, 1))


class Loose(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(shape[0], 2))

    def forward(self, x):
        return x @ self.embedding


class Tidy(Loose):
    def reset_parameters(self):
        nn.init.normal_(self.embedding)


def test_loose_random_parameters_are_refused_and_tidy_ones_drawn():
    register_torso("loose", Loose)
    register_torso("tidy", Tidy)
    spec = ArraySpec((4,))
    with pytest.raises(LudusError, match=r"Loose \(body\).*no reset_parameters"):
        initialize(build_torso(Custom(name="loose"), spec), rng())
    a, b = (build_torso(Custom(name="tidy"), spec) for _ in range(2))
    initialize(a, rng(3))
    initialize(b, rng(3))
    assert torch.equal(a.body.embedding, b.body.embedding)


def test_the_free_log_std_returns_to_its_setting():
    head = build_policy_head(4, Continuous((2,), (-1.0,) * 2, (1.0,) * 2), log_std_init=-0.5)
    with torch.no_grad():
        head.log_std += 1
    initialize(head, rng())
    assert head.log_std.tolist() == [-0.5, -0.5]


def test_a_part_that_is_replaced_is_the_one_that_is_called():
    """In a copy of the net, too: nothing refers to the weights of the original."""
    net, x = QNet(SPEC, MLP(hidden=(8,)), Scalar()), torch.randn(2, 4)
    before = net(x).q
    for copied in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(copied(x).q, before)
        with torch.no_grad():
            for p in copied.parameters():
                p.zero_()
        assert copied(x).q.count_nonzero() == 0
    assert torch.equal(net(x).q, before)
    net.torso = build_torso(MLP(hidden=(8,)), SPEC.obs)
    assert torch.equal(net(x).q, net.head(net.torso(x)).q) and not torch.equal(net(x).q, before)
    assert set(dict(net.named_children())) == {"torso", "head"}


def test_the_best_action_of_a_scalar_head_has_the_largest_q_that_is_allowed():
    head = QNet(SPEC, MLP(), Scalar()).head
    out = head.read(torch.tensor([[[3.0], [1.0], [2.0]], [[-1.0], [-2.0], [5.0]]]))
    assert head.best(out).tolist() == [[3.0], [5.0]]
    out = out._replace(q=out.q.masked_fill(torch.tensor([True, False, False]), -torch.inf))
    assert head.best(out).tolist() == [[2.0], [5.0]] == head.select(out, out.q.argmax(-1)).tolist()
