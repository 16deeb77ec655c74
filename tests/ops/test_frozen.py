"""A frozen net trains its inputs, never itself."""

import torch
from torch import nn

from ludus import ops


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 1, bias=False)
        self.register_buffer("shift", torch.ones(1))

    def forward(self, x, *, scale=1.0):
        return scale * self.linear(x) + self.shift


def test_gradients_reach_the_input_but_not_the_weights():
    net, x = Scaled(), torch.ones(3, 2, requires_grad=True)
    out = ops.frozen(net)(x, scale=2.0)
    torch.testing.assert_close(out, net(x, scale=2.0))
    out.sum().backward()
    assert net.linear.weight.grad is None
    torch.testing.assert_close(x.grad, 2.0 * net.linear.weight.detach().expand(3, 2))
    assert net.linear.weight.requires_grad


def test_it_follows_the_weights():
    net, x = Scaled(), torch.ones(1, 2)
    call = ops.frozen(net)
    with torch.no_grad():
        net.linear.weight.fill_(3.0)
        net.shift.fill_(-1.0)
    assert call(x).item() == 5.0
