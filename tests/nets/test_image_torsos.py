"""The torsos of the papers: sizes, parameters, gradients, memory formats."""

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from ludus.algos import dqn
from ludus.errors import LudusError
from ludus.nets import (
    CNN,
    Categorical,
    Custom,
    Impala,
    Implicit,
    Nature,
    Nips,
    Order,
    Quantile,
    Scalar,
    TorsoConfig,
    build_torso,
    custom_torso,
)
from ludus.nets.inputs import ImageInput
from ludus.nets.torsos import CNNTorso, ImpalaTorso
from ludus.types import ArraySpec, Ctx, Discrete, EnvSpec, Transition

ATARI = ArraySpec((84, 84), "uint8", 0, 255, stack=4, layout="hw")
KINDS = [Nips(), Nature(), Impala(), Impala(width=2, hidden=32), Nature(hidden=0)]


def screens(batch=3):
    return torch.randint(0, 256, (batch, 4, 84, 84)).to(torch.uint8)


def size(net):
    return sum(p.numel() for p in net.parameters())


def conv(inputs, outputs, kernel):
    return outputs * (inputs * kernel * kernel + 1)


def impala(width, hidden, inputs=4, sides=(42, 21, 11)):
    total = 0
    for channels in (16 * width, 32 * width, 32 * width):
        total += conv(inputs, channels, 3) + 4 * conv(channels, channels, 3)
        inputs = channels
    return total + hidden * (inputs * sides[-1] ** 2 + 1)


@pytest.mark.parametrize(
    ("cfg", "want"),
    [
        # 84 -> (84-8)/4+1 = 20 -> (20-4)/2+1 = 9 -> 9-3+1 = 7
        (Nips(), conv(4, 16, 8) + conv(16, 32, 4) + 256 * (32 * 9 * 9 + 1)),
        (Nature(), conv(4, 32, 8) + conv(32, 64, 4) + conv(64, 64, 3) + 512 * (64 * 7 * 7 + 1)),
        (Nature(), 1_684_128),  # as the paper's network is usually counted
        (Impala(), impala(1, 256)),
        (Impala(), 1_089_232),
        (Impala(width=2), impala(2, 256)),
        (Impala(width=4, hidden=0), impala(4, 0)),
    ],
)
def test_parameters_are_those_of_the_paper(cfg, want):
    assert size(build_torso(cfg, ATARI)) == want


@pytest.mark.parametrize("cfg", KINDS, ids=str)
def test_features_have_the_width_they_say_and_every_weight_learns(cfg):
    torso = build_torso(cfg, ATARI)
    y = torso(screens())
    assert y.shape == (3, torso.out) and y.dtype == torch.float32
    y.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in torso.parameters())


def test_a_residual_block_keeps_its_input_for_the_skip():
    block = build_torso(Impala(), ATARI).images[0].sections[2]
    x = torch.randn(2, 16, 5, 5)
    before = x.clone()
    want = x + block.second(torch.relu(block.first(torch.relu(x))))
    torch.testing.assert_close(block(x), want)
    assert torch.equal(x, before)


@pytest.mark.parametrize("cfg", [Nips(), Nature(), Impala()], ids=str)
@pytest.mark.parametrize(
    "spec",
    [ArraySpec((3, 84, 84), "uint8", layout="chw"), ArraySpec((84, 84, 3), "uint8", layout="hwc"),
     ArraySpec((64, 96, 3), "uint8", stack=2, layout="hwc"),
     {"screen": ArraySpec((84, 84), "uint8", layout="hw")}],
    ids=str,
)  # fmt: skip
def test_every_layout_of_one_image_is_taken(cfg, spec):
    leaf = spec["screen"] if isinstance(spec, dict) else spec
    x = torch.randint(0, 256, (2, *leaf.seen_shape)).to(torch.uint8)
    torso = build_torso(cfg, spec)
    assert torso({"screen": x} if isinstance(spec, dict) else x).shape == (2, torso.out)


@pytest.mark.parametrize("cfg", KINDS, ids=str)
def test_the_order_in_memory_changes_neither_features_nor_gradients(cfg):
    torso, x = build_torso(cfg, ATARI), screens(32)
    assert torso.inputs[0](x).is_contiguous(memory_format=torch.channels_last)
    got = torso(x)
    grads = torch.autograd.grad(got.square().sum(), list(torso.parameters()))
    torso.inputs[0].channels_last = False
    assert torso.inputs[0](x).is_contiguous()
    want = torso(x)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    wanted = torch.autograd.grad(want.square().sum(), list(torso.parameters()))
    for a, b in zip(grads, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4 * float(b.abs().max()))


def test_images_are_rearranged_where_that_was_measured_to_pay():
    prepare, x = build_torso(Nature(), ATARI).inputs[0], screens(32)
    assert torch.equal(prepare(x), ImageInput(ATARI)(x))
    assert ImageInput(ATARI)(x).is_contiguous()  # a class of the user's may call view
    assert prepare(x[:8]).is_contiguous()
    with torch.autocast("cpu", torch.bfloat16):
        assert prepare(x).is_contiguous()
        residual = build_torso(Impala(), ATARI).inputs[0](x[:2])
    assert residual.is_contiguous(memory_format=torch.channels_last)
    assert residual.dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("order", [CNNTorso.order, ImpalaTorso.order], ids=str)
def test_a_measurement_goes_before_what_a_torso_assumes_but_not_for_a_few_images(order, dtype):
    prepare = ImageInput(ATARI, order)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        for measured in (True, False):
            prepare.channels_last = measured
            last = prepare(screens(32)).is_contiguous(memory_format=torch.channels_last)
            assert last is measured
        prepare.channels_last = True
        few = prepare(screens(8)).is_contiguous(memory_format=torch.channels_last)
    assert few is (order.rows <= 8)
    never = ImageInput(ATARI)
    never.channels_last = True
    assert never(screens(32)).is_contiguous(), "a class that did not ask for it may call view"


class Mine(torch.nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.conv = torch.nn.Conv2d(shape[0], 2, 8, 8)

    def forward(self, x):
        return self.conv(x).flatten(1)


class MineLast(Mine):
    order = Order()


class MineOrdered(Mine):
    order = "descending"  # somebody's own word


@pytest.mark.parametrize(("cls", "last"), [(Mine, False), (MineLast, True), (MineOrdered, False)])
def test_a_class_of_ones_own_may_ask_for_channels_last(monkeypatch, cls, last):
    monkeypatch.setattr(custom_torso, "_CUSTOM", {"mine": cls})
    torso = build_torso(Custom(name="mine"), ATARI)
    given = torso.inputs[0](screens(4))
    assert given.is_contiguous(memory_format=torch.channels_last) is last


def test_weights_and_gradients_keep_the_order_that_checkpoints_have():
    torso = build_torso(Nature(), ATARI)
    torso(screens(32)).sum().backward()
    for p in torso.parameters():
        assert p.is_contiguous() and p.grad.is_contiguous()


@pytest.mark.parametrize("cfg", KINDS, ids=str)
def test_channels_last_computes_the_same(cfg):
    torso, x = build_torso(cfg, ATARI), screens()
    want = torso(x)
    torso = torso.to(memory_format=torch.channels_last)
    for given in (x, x.to(memory_format=torch.channels_last)):
        torch.testing.assert_close(torso(given), want, rtol=1e-4, atol=1e-5)


def test_channels_last_stays_until_the_maps_are_flattened():
    torso = build_torso(Impala(), ATARI).to(memory_format=torch.channels_last)
    x = torso.inputs[0](screens().to(memory_format=torch.channels_last))
    assert x.is_contiguous(memory_format=torch.channels_last)
    y = torso.images[0].sections(x)
    assert y.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("head", [Scalar, Categorical, Quantile, Implicit])
@pytest.mark.parametrize("torso", [Nature(hidden=0), Impala()], ids=str)
def test_nothing_of_an_update_depends_on_a_number_the_host_would_wait_for(torso, head):
    """Tensors without values, as while a CUDA graph is captured: whoever reads one fails."""
    spec = EnvSpec("probe", ATARI, Discrete(3))
    algo = dqn.DQN(dqn.Config(torso=torso, head=head(dueling=True, noisy=0.5, hidden=8)))
    rng = torch.Generator()
    with FakeTensorMode(), torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(DataDependentOutputException):
            torch.zeros(1).item()
        net, x = algo.build(spec), torch.zeros(2, 4, 84, 84, dtype=torch.uint8)
        batch = Transition(x, torch.zeros(2, dtype=torch.int64), torch.zeros(2), torch.ones(2), x)
        algo.loss(net, batch, Ctx(rng, spec)).value.mean().backward()
    assert all(p.grad is not None for p in net["online"].parameters())


@pytest.mark.parametrize("cfg", [Nips(), Nature(), Impala()], ids=str)
def test_they_need_one_image_and_say_so(cfg):
    image, vector = ArraySpec((84, 84), "uint8", layout="hw"), ArraySpec((4,))
    for spec in (vector, {"a": image, "b": vector}, ArraySpec((6, 6), "uint8", layout="hw")):
        with pytest.raises(LudusError, match=rf"E203.*torso {cfg.kind} needs one image"):
            build_torso(cfg, spec)


def test_a_small_image_is_for_impala_or_the_cnn():
    small = ArraySpec((10, 10), "uint8", layout="hw")
    assert build_torso(Impala(), small)(torch.zeros(2, 10, 10, dtype=torch.uint8)).shape == (2, 256)
    with pytest.raises(LudusError, match=r"too small for layer 1.*\n.*torso.kind=cnn"):
        build_torso(Nature(), small)


def test_the_nature_torso_is_the_cnn_of_that_size():
    torch.manual_seed(1)
    nature = build_torso(Nature(), ATARI)
    torch.manual_seed(1)
    cnn = CNNTorso((4, 84, 84), CNN(hidden=512))
    x = screens()
    torch.testing.assert_close(nature(x), cnn(x / 255))


def test_they_are_written_by_kind():
    parse = TypeAdapter(TorsoConfig).validate_python
    assert parse({"kind": "nips"}) == Nips()
    assert parse({"kind": "nature", "hidden": 512}) == Nature()
    assert parse({"kind": "impala", "width": 2, "hidden": 256}) == Impala(width=2)
    for wrong in ({"kind": "nature", "width": 2}, {"kind": "impala", "width": 0}, {"kind": "vgg"}):
        with pytest.raises(ValidationError):
            parse(wrong)
