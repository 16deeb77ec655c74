"""An LSTM that forgets at episode starts. Not a torso: it works on sequences [T, B, F]."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from ludus.nets.torsos import in_full

State: TypeAlias = tuple[Tensor, Tensor]  # h, c: [B,H] each


FEW = 4  # stretches up to which the fused kernel is faster than the loop; each costs one call


class LSTMCore(nn.Module):
    """x [T,B,F], first [T,B], state -> y [T,B,H], state. State is zeroed where `first`.

    mode "auto" runs the fused kernel between the steps at which any episode starts (one stretch
    when none does after t = 0) and has to look at `first` for that; where there are many it goes
    step by step. With "fused" the caller promises that nothing starts after t = 0; "steps" never
    looks and never branches, for captured graphs.
    """

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(features, hidden), hidden

    def initial(self, batch: int, device: torch.device | str = "cpu") -> State:
        zeros = torch.zeros(batch, self.out, device=device)
        return zeros, zeros.clone()

    def remember(self, x: Tensor, first: Tensor, state: State) -> tuple[Tensor, State]:
        """As a part of a net, on any device and at any precision."""
        # On a GPU nothing may look at the flags: the host would wait, a capture would fail.
        mode = "auto" if x.device.type == "cpu" else "steps"
        out: tuple[Tensor, State] = in_full(self, x, first, state, mode)
        return out

    def forward(
        self,
        x: Tensor,
        first: Tensor,
        state: State,
        mode: Literal["auto", "fused", "steps"] = "auto",
    ) -> tuple[Tensor, State]:
        steps = x.shape[0]
        if mode == "steps" or steps == 1:
            return self._stepwise(x, first, state)
        starts = [0]
        if mode == "auto":
            later = first[1:].any(1).nonzero().flatten() + 1
            starts += later.tolist()
        if len(starts) > FEW:
            return self._stepwise(x, first, state)
        parts = []
        h, c = state
        for begin, end in zip(starts, [*starts[1:], steps], strict=True):
            keep = (~first[begin]).to(x.dtype).unsqueeze(1)  # [B,1]
            y, (h, c) = self.lstm(x[begin:end], ((h * keep)[None], (c * keep)[None]))
            h, c = h[0], c[0]
            parts.append(y)
        return parts[0] if len(parts) == 1 else torch.cat(parts), (h, c)

    def _stepwise(self, x: Tensor, first: Tensor, state: State) -> tuple[Tensor, State]:
        """The same equations one step at a time, inputs multiplied all at once: a call of the
        kernel per step took four times as long."""
        (weight, recurrent, bias, more_bias), size = self.lstm.all_weights[0], self.out
        inputs = functional.linear(x, weight, bias + more_bias)  # [T,B,4H]
        keeps = (~first).to(x.dtype).unsqueeze(2)  # [T,B,1]
        (h, c), out, recurrent_t = state, [], recurrent.t()
        for fed, keep in zip(inputs.unbind(), keeps.unbind(), strict=True):
            gates = torch.addmm(fed, h * keep, recurrent_t)  # input, forget, cell, output
            i, f, _, o = gates.sigmoid().chunk(4, 1)
            g = gates[:, 2 * size : 3 * size].tanh()
            c = torch.addcmul(i * g, f, c * keep)
            h = o * c.tanh()
            out.append(h)
        return torch.stack(out), (h, c)
