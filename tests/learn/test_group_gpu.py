"""A group whose learners have GPUs: tensors there travel by NCCL. One GPU shows a group of one."""

from __future__ import annotations

import pytest
import torch

from ludus.learn.compression import Compression
from ludus.learn.group import LearnerGroup
from tests.skips import needs_gpu

pytestmark = needs_gpu


@pytest.mark.parametrize("kind", ["off", "zlib", "bf16", "topk"])
def test_a_learner_with_a_gpu_sums_by_nccl(kind, tmp_path) -> None:
    group = LearnerGroup(tmp_path, 0, 1, torch.device("cuda:0"))
    assert group._gpu is not None
    x = torch.arange(8.0, device="cuda:0")
    total = group.sum if kind == "off" else Compression(kind, group, 1.0).total
    found = total(x)
    assert found.device == x.device and torch.equal(found, x)
    assert group.all(True) and group.gather([1, 2]) == [[1, 2]]
