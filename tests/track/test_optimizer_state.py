"""Optimizer state through tensors and JSON: training goes on bit for bit."""

import json

import pytest
import torch

from ludus.errors import LudusError
from ludus.track.checkpoint.optimizer import optimizer_from_tensors, optimizer_to_tensors

MAKERS = {
    "adam": lambda g: torch.optim.Adam(g, lr=1e-2, betas=(0.8, 0.95)),
    "adamw_amsgrad": lambda g: torch.optim.AdamW(g, lr=1e-2, amsgrad=True),
    "adam_tensor_lr": lambda g: torch.optim.Adam(g, lr=torch.tensor(1e-2)),
    "rmsprop_centered": lambda g: torch.optim.RMSprop(g, lr=1e-2, centered=True, momentum=0.9),
    "sgd": lambda g: torch.optim.SGD(g, lr=1e-2, momentum=0.9),
}


def net():
    module = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=rng))
    return module


def groups(module):
    return [
        {"params": list(module[0].parameters()), "lr": 3e-3},
        {"params": list(module[2].parameters())},
    ]


def train(module, optimizer, begin, end):
    for i in range(begin, end):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(i))
        optimizer.zero_grad()
        module(x).pow(2).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("name", MAKERS)
def test_training_goes_on_bit_for_bit(name):
    straight = net()
    optimizer = MAKERS[name](groups(straight))
    train(straight, optimizer, 0, 4)
    optimizer.param_groups[0]["lr"] = 7e-3  # a schedule moved it
    weights = {k: v.clone() for k, v in straight.state_dict().items()}
    tensors, meta = optimizer_to_tensors(optimizer)
    tensors, meta = {k: v.clone() for k, v in tensors.items()}, json.loads(json.dumps(meta))
    train(straight, optimizer, 4, 9)

    resumed = net()
    resumed.load_state_dict(weights)
    second = MAKERS[name](groups(resumed))
    optimizer_from_tensors(second, tensors, meta)
    assert second.param_groups[0]["lr"] == 7e-3
    train(resumed, second, 4, 9)
    for a, b in zip(straight.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)


def refused(optimizer, tensors, meta):
    with pytest.raises(LudusError) as caught:
        optimizer_from_tensors(optimizer, tensors, meta)
    assert caught.value.code == "E306"
    return str(caught.value)


@pytest.mark.accept(143)
def test_a_state_of_another_network_or_optimizer_is_refused():
    module = net()
    optimizer = MAKERS["adam"](groups(module))
    train(module, optimizer, 0, 2)
    tensors, meta = optimizer_to_tensors(optimizer)
    wider = torch.nn.Sequential(torch.nn.Linear(3, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))
    assert "(5, 3), not (6, 3)" in refused(MAKERS["adam"](groups(wider)), tensors, meta)
    assert "SGD" in refused(MAKERS["sgd"](groups(net())), tensors, meta)
    assert "groups" in refused(MAKERS["adam"](net().parameters()), tensors, meta)
    assert "parameter 9" in refused(optimizer, {**tensors, "9/exp_avg": torch.zeros(2)}, meta)
