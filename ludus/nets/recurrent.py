"""An LSTM that forgets at episode starts. Not a torso: it works on sequences [T, B, F]."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

State: TypeAlias = tuple[Tensor, Tensor]  # h, c: [B,H] each


class LSTMCore(nn.Module):
    """x [T,B,F], first [T,B], state -> y [T,B,H], state. State is zeroed where `first`.

    mode "auto" runs the fused kernel between the steps at which any episode starts (one stretch
    when none does after t = 0) and has to look at `first` for that. "fused" is the caller's word
    that nothing starts after t = 0; "steps" never looks and never branches, for captured graphs.
    """

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(features, hidden), hidden

    def initial(self, batch: int, device: torch.device | str = "cpu") -> State:
        zeros = torch.zeros(batch, self.out, device=device)
        return zeros, zeros.clone()

    def forward(
        self,
        x: Tensor,
        first: Tensor,
        state: State,
        mode: Literal["auto", "fused", "steps"] = "auto",
    ) -> tuple[Tensor, State]:
        steps = x.shape[0]
        if mode == "fused" or steps == 1:
            starts = [0]
        elif mode == "steps":
            starts = list(range(steps))
        else:
            later = first[1:].any(1).nonzero().flatten() + 1
            starts = [0, *later.tolist()]
        parts = []
        h, c = state
        for begin, end in zip(starts, [*starts[1:], steps], strict=True):
            keep = (~first[begin]).to(x.dtype).unsqueeze(1)  # [B,1]
            y, (h, c) = self.lstm(x[begin:end], ((h * keep)[None], (c * keep)[None]))
            h, c = h[0], c[0]
            parts.append(y)
        return parts[0] if len(parts) == 1 else torch.cat(parts), (h, c)
