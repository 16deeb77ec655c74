"""Inputs and torsos: layouts, stacks, trees, sizes, and classes of users."""

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import nn

from ludus.errors import LudusError
from ludus.nets import CNN, MLP, Auto, Custom, TorsoConfig, build_torso, over_time, register_torso
from ludus.nets.heads import HeadOut
from ludus.nets.inputs import ImageInput, VectorInput
from ludus.nets.torsos import CNNTorso, MLPTorso
from ludus.types import ArraySpec


def frames(*shape):
    return torch.arange(torch.Size(shape).numel(), dtype=torch.int64).remainder(256).to(
        torch.uint8
    ).view(shape)  # fmt: skip


@pytest.mark.parametrize(
    ("layout", "shape", "stack"),
    [("chw", (3, 9, 8), 1), ("hwc", (9, 8, 3), 1), ("hw", (9, 8), 1),
     ("chw", (3, 9, 8), 4), ("hwc", (9, 8, 3), 4), ("hw", (9, 8), 4)],
)  # fmt: skip
def test_every_layout_becomes_the_same_channels_first_image(layout, shape, stack):
    spec = ArraySpec(shape, "uint8", 0, 255, stack=stack, layout=layout)
    x = frames(2, *spec.seen_shape)
    ready = ImageInput(spec)
    y = ready(x)
    channels = 1 if layout == "hw" else 3
    assert y.shape == (2, *ready.shape) == (2, channels * stack, 9, 8)
    for b, k, c, i, j in [(0, 0, 0, 0, 0), (1, stack - 1, channels - 1, 8, 7), (1, 0, 0, 3, 5)]:
        at = {"chw": (c, i, j), "hwc": (i, j, c), "hw": (i, j)}[layout]
        source = x[(b, k, *at) if stack > 1 else (b, *at)]
        assert y[b, k * channels + c, i, j].item() == pytest.approx(source.item() / 255)


def test_input_processing_never_writes_into_the_observation():
    spec = ArraySpec((6,), "float32")
    x = torch.randn(3, 6)
    before = x.clone()
    build_torso(MLP(hidden=()), spec)(x)
    build_torso(MLP(activation="tanh"), spec)(x)
    assert torch.equal(x, before)


@pytest.mark.parametrize(
    ("spec", "x", "want"),
    [
        (ArraySpec((2, 2), "uint8"), torch.tensor([[[0, 255], [51, 102]]], dtype=torch.uint8),
         [0, 1, 0.2, 0.4]),
        (ArraySpec((2,), "bool"), torch.tensor([[True, False]]), [1, 0]),
        (ArraySpec((2,), "int64"), torch.tensor([[7, -3]]), [7, -3]),
        (ArraySpec((), "float32"), torch.tensor([2.5]), [2.5]),
        (ArraySpec((2,), "float32", stack=2), torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]),
         [1, 2, 3, 4]),
    ],
)  # fmt: skip
def test_vectors_of_any_dtype_become_flat_floats(spec, x, want):
    ready = VectorInput(spec)
    y = ready(x)
    assert y.dtype == torch.float32
    assert y.shape == (1, *ready.shape)
    torch.testing.assert_close(y[0], torch.tensor(want, dtype=torch.float32))


def test_a_plain_vector_goes_straight_into_dense_layers():
    torso = build_torso(Auto(), ArraySpec((4,)))
    assert isinstance(torso, MLPTorso)
    assert torso.out == 64
    x = torch.randn(5, 4)
    want = x
    for layer in torso.layers:
        want = layer(want).relu()
    torch.testing.assert_close(torso(x), want)


@pytest.mark.parametrize("activation", ["relu", "tanh", "elu"])
def test_in_place_activations_have_the_right_gradient(activation):
    torso = build_torso(MLP(hidden=(5, 3), activation=activation), ArraySpec((4,))).double()
    x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(torso, (x,))


@pytest.mark.parametrize(
    "size", [(8, 8), (8, 30), (10, 10), (15, 16), (35, 35), (36, 36), (84, 84)]
)
def test_the_cnn_takes_any_image_from_8x8_up(size):
    torso = build_torso(CNN(), ArraySpec((*size, 3), "uint8", layout="hwc"))
    assert torso(frames(2, *size, 3)).shape == (2, 256) == (2, torso.out)


def test_the_cnn_of_84x84_is_that_of_the_nature_paper():
    torso = CNNTorso((4, 84, 84), CNN(hidden=512))
    windows = [(c.out_channels, c.kernel_size[0], c.stride[0]) for c in torso.convolutions]
    assert windows == [(32, 8, 4), (64, 4, 2), (64, 3, 1)]
    assert torso.dense.in_features == 3136


def test_explicit_kernels_are_used_and_refused_where_they_do_not_fit():
    cfg = CNN(channels=(16, 32), kernels=(8, 4), strides=(4, 2), hidden=0)
    assert CNNTorso((4, 84, 84), cfg).out == 32 * 9 * 9
    with pytest.raises(LudusError, match=r"E203.*too small for layer 1"):
        CNNTorso((4, 12, 12), cfg)
    with pytest.raises(ValidationError, match="one of each per entry"):
        CNN(kernels=(3,), strides=(1,))


def test_a_cnn_needs_an_image_and_auto_does_not():
    vector = ArraySpec((4,))
    tiny = ArraySpec((4, 4), "uint8", layout="hw")
    for spec in (vector, tiny, {"a": vector, "b": vector}):
        with pytest.raises(LudusError, match=r"E203.*torso cnn needs one image"):
            build_torso(CNN(), spec)
    assert build_torso(Auto(), tiny)(frames(3, 4, 4)).shape == (3, 64)


TREE = {
    "camera": ArraySpec((16, 16), "uint8", stack=2, layout="hw"),
    "body": (ArraySpec((3,)), ArraySpec((2,), "uint8")),
}


def tree(batch=(5,)):
    return {
        "camera": torch.randint(0, 256, (*batch, 2, 16, 16)).to(torch.uint8),
        "body": (torch.randn(*batch, 3), torch.randint(0, 256, (*batch, 2)).to(torch.uint8)),
    }


def test_trees_get_one_cnn_per_image_and_one_mlp_for_the_vectors():
    torso = build_torso(Auto(mlp=MLP(hidden=(7,)), cnn=CNN(hidden=11)), TREE)
    obs = tree()
    y = torso(obs)
    assert y.shape == (5, 18) == (5, torso.out)
    assert torch.equal(torso({"body": obs["body"], "camera": obs["camera"]}), y)  # order of keys
    changed = torso(obs | {"body": (obs["body"][0] + 1, obs["body"][1])})
    assert torch.equal(changed[:, :11], y[:, :11])
    assert not torch.equal(changed[:, 11:], y[:, 11:])


def test_an_mlp_flattens_a_whole_tree():
    torso = build_torso(MLP(hidden=(6,)), TREE)
    assert torso.vectors.layers[0].in_features == 2 * 16 * 16 + 3 + 2
    assert torso(tree()).shape == (5, 6)


def test_a_single_leaf_in_a_dict_still_arrives_as_a_dict():
    torso = build_torso(Auto(), {"state": ArraySpec((3,))})
    assert torso({"state": torch.randn(2, 3)}).shape == (2, 64)


def test_over_time_equals_a_loop_over_steps():
    torso = build_torso(Auto(), TREE)
    obs = tree((4, 3))
    y = over_time(torso, obs)
    assert y.shape == (4, 3, torso.out)
    for t in range(4):
        step = {"camera": obs["camera"][t], "body": tuple(x[t] for x in obs["body"])}
        torch.testing.assert_close(y[t], torso(step), rtol=1e-4, atol=1e-5)
    out = over_time(lambda x, k: HeadOut(x + k, x.unsqueeze(-1)), torch.zeros(4, 3, 2), 1)
    assert out.q.shape == (4, 3, 2)
    assert out.q.eq(1).all()
    assert out.dist.shape == (4, 3, 2, 1)
    assert out.taus is None


class Squared(nn.Module):
    def __init__(self, shape, width=3):
        super().__init__()
        self.linear = nn.Linear(shape[0], width)

    def forward(self, x):
        return self.linear(x).square()


class Wrong(nn.Module):
    def __init__(self, shape):
        super().__init__()

    def forward(self, x):
        return x.sum()


class Both(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.seen = shape

    def forward(self, x):
        return torch.cat((x["camera"].flatten(1), *x["body"]), 1)


def test_a_class_of_the_user_is_found_by_name_and_measured():
    register_torso("squared", Squared)
    register_torso("squared", Squared)  # importing a module twice is no error
    torso = build_torso(Custom(name="squared", options={"width": 9}), ArraySpec((4,)))
    assert torso.out == 9
    assert torso(torch.randn(5, 4)).shape == (5, 9)
    register_torso("both", Both)
    whole = build_torso(Custom(name="both"), TREE)
    assert whole.body.seen == {"camera": (2, 16, 16), "body": ((3,), (2,))}
    assert whole(tree()).shape == (5, whole.out)


def test_custom_torsos_are_refused_in_words():
    register_torso("squared", Squared)
    register_torso("wrong", Wrong)
    with pytest.raises(LudusError, match=r"E104.*registered already"):
        register_torso("squared", Both)
    with pytest.raises(LudusError, match=r"E103.*'sqared'.*did you mean  squared"):
        build_torso(Custom(name="sqared"), ArraySpec((4,)))
    with pytest.raises(LudusError, match=r"E203.*answered \(\) to a batch of 2"):
        build_torso(Custom(name="wrong"), ArraySpec((4,)))


def test_options_a_custom_torso_does_not_take_are_named():
    register_torso("squared", Squared)
    register_torso("both", Both)
    with pytest.raises(LudusError, match=r"E103.*'widht'.*did you mean  width") as caught:
        build_torso(Custom(name="squared", options={"widht": 9}), ArraySpec((4,)))
    assert "Squared takes: width" in caught.value.why
    with pytest.raises(LudusError, match=r"E103.*'width'") as caught:
        build_torso(Custom(name="both", options={"width": 9}), TREE)
    assert "no options" in caught.value.why


def test_an_error_inside_a_custom_torso_keeps_its_own_words():
    class Fails(nn.Module):
        def __init__(self, shape):
            super().__init__()
            raise TypeError("from within")

    register_torso("fails", Fails)
    with pytest.raises(TypeError, match="from within"):
        build_torso(Custom(name="fails"), ArraySpec((4,)))


def test_configs_are_distinguished_by_kind_and_refuse_unknown_keys():
    parse = TypeAdapter(TorsoConfig).validate_python
    assert parse({"kind": "mlp", "hidden": [8], "activation": "elu"}) == MLP(
        hidden=(8,), activation="elu"
    )
    assert parse({"kind": "auto", "cnn": {"hidden": 32}}).cnn.hidden == 32
    with pytest.raises(ValidationError, match="widths"):
        parse({"kind": "mlp", "widths": [8]})
    with pytest.raises(ValidationError):
        parse({"kind": "mlp", "hidden": [0]})
