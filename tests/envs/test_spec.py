"""Spaces of every supported kind, seen through the codecs."""

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs, probe_spec
from ludus.envs.spec import ActionCodec, ObsCodec
from ludus.errors import LudusError
from ludus.types import ArraySpec, tree_leaves
from tests.envs.recorder import collect


def read(space, obs, **options):
    codec = ObsCodec(space, **options)
    buffers = codec.buffers(2)
    codec.write(obs, buffers, 1)
    assert not any(b[0].any() for b in buffers)
    return codec.tree([b[1] for b in buffers])


@pytest.mark.parametrize(
    ("shape", "dtype", "layout", "expected"),
    [
        ((64, 64, 3), np.uint8, "auto", "hwc"),
        ((3, 64, 64), np.uint8, "auto", "chw"),
        ((84, 84), np.uint8, "auto", "hw"),
        ((12, 84, 84), np.float32, "auto", "chw"),
        ((84, 84, 84), np.uint8, "chw", "chw"),
        ((5, 4, 3), np.float32, "auto", None),
        ((10, 10), np.float32, "auto", None),
        ((128,), np.uint8, "auto", None),
    ],
)
def test_images_are_recognised_by_shape_or_setting(shape, dtype, layout, expected):
    spec = ObsCodec(spaces.Box(0, 1, shape, dtype), layout=layout, stack=4).spec
    assert spec.layout == expected and spec.shape == shape and spec.stack == 4
    assert spec.dtype == ("uint8" if dtype == np.uint8 else "float32")


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int64, np.int8, np.bool_, np.uint16])
def test_numbers_of_any_type_become_float32(dtype):
    low, high = (0, 100) if np.dtype(dtype).kind == "f" else (0, 1)
    values = np.array([[1, 0], [0, 1]], dtype)
    seen = read(spaces.Box(low, high, (2, 2), dtype), values)
    assert seen.dtype == np.float32
    np.testing.assert_array_equal(seen, values.astype(np.float32))


def test_uint8_stays_and_bounds_are_reported():
    spec = ObsCodec(spaces.Box(0, 255, (8, 8), np.uint8)).spec
    assert spec == ArraySpec((8, 8), "uint8", 0.0, 255.0, 1, "hw")
    unbounded = ObsCodec(spaces.Box(-np.inf, np.array([1.0, 3.0]), (2,), np.float64)).spec
    assert unbounded.low is None and unbounded.high == 3.0


def test_dicts_and_tuples_keep_their_shape_and_order():
    space = spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (8, 8, 3), np.uint8),
            "body": spaces.Tuple([spaces.Discrete(3, start=1), spaces.MultiDiscrete([2, 2])]),
        }
    )
    obs = space.sample()
    obs["body"] = (3, np.array([1, 0]))
    shuffled = dict(reversed(list(obs.items())))  # the space's order counts, not the dict's
    codec = ObsCodec(space)
    seen = read(space, shuffled)
    assert list(seen) == list(codec.spec) == list(space.spaces)
    np.testing.assert_array_equal(seen["camera"], obs["camera"])
    assert seen["body"][0].tolist() == [0, 0, 1] and seen["body"][1].tolist() == [0, 1, 1, 0]
    assert sorted(leaf.path for leaf in codec.leaves) == ["obs.body.0", "obs.body.1", "obs.camera"]


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=40)
def test_random_members_of_random_spaces_are_read_without_loss(seed):
    rng = np.random.default_rng(seed)
    parts = {
        "box": spaces.Box(-5, 5, tuple(rng.integers(1, 4, rng.integers(0, 4))), np.float32),
        "number": spaces.Discrete(int(rng.integers(1, 6)), start=int(rng.integers(-3, 4))),
        "numbers": spaces.MultiDiscrete(rng.integers(1, 5, rng.integers(1, 4))),
        "bits": spaces.MultiBinary(int(rng.integers(1, 5))),
    }
    space = spaces.Dict(parts, seed=int(seed))
    obs = space.sample()
    seen = read(space, obs)
    np.testing.assert_array_equal(seen["box"], obs["box"])
    np.testing.assert_array_equal(seen["bits"], obs["bits"])
    assert seen["number"].argmax() + parts["number"].start == obs["number"]
    edges = np.cumsum(parts["numbers"].nvec)[:-1]
    back = [part.argmax() for part in np.split(seen["numbers"], edges)]
    assert back == obs["numbers"].tolist()
    assert seen["number"].sum() == 1 and seen["numbers"].sum() == len(back)


@pytest.mark.parametrize(
    ("space", "obs", "says"),
    [
        (spaces.Box(0, 1, (4,)), np.zeros(1, np.float32), "got shape (1,)"),
        (spaces.Box(0, 1, (2,)), [0.0, [1.0]], "ragged"),
        (spaces.Box(0, 1, (1,)), None, "got shape ()"),
        (spaces.Box(0, 255, (1,), np.uint8), np.array([0.5]), "float64, expected shape (1,) uint8"),
        (spaces.Box(0, 255, (1,), np.uint8), np.array([256]), "int64"),
        (spaces.Discrete(3), 3, "got 3, which is not in 0..2"),
        (spaces.Discrete(3), 1.0, "float64"),
        (spaces.MultiDiscrete([2, 3]), np.array([2, 0]), "not in 0..1"),
        (spaces.Dict({"a": spaces.Discrete(2)}), {"b": 1}, "no entry 'a' (got ['b'])"),
        (spaces.Tuple([spaces.Discrete(2)]), (), "no entry 0"),
    ],
)
def test_an_observation_outside_its_space_is_refused_with_got_and_expected(space, obs, says):
    with pytest.raises(LudusError) as caught:
        read(space, obs)
    assert caught.value.code == "E203" and says in caught.value.what
    assert "expected shape" in caught.value.what


def test_unsupported_spaces_are_named():
    with pytest.raises(LudusError, match=r"E204.*obs\.words is a Text"):
        ObsCodec(spaces.Dict({"words": spaces.Text(5)}))
    for space in (spaces.Dict({"a": spaces.Discrete(2)}), spaces.Box(0, 5, (2,), np.int64)):
        with pytest.raises(LudusError, match="E204"):
            ActionCodec(space)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(4, start=-2),
        spaces.MultiDiscrete([3, 2], start=[1, 4]),
        spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
        spaces.MultiBinary(3),
        spaces.Box(-1, 2, (2, 3), np.float64),
    ],
)
def test_decoded_actions_belong_to_the_space(space):
    codec, rng = ActionCodec(space), np.random.default_rng(0)
    spec = codec.spec
    if hasattr(spec, "low"):
        drawn = rng.uniform(-1, 2, (6, *spec.shape)).astype(np.float32)
    else:
        top = spec.n if hasattr(spec, "n") else spec.nvec
        drawn = rng.integers(0, top, (6, len(spec.nvec)) if hasattr(spec, "nvec") else 6)
    decoded = codec.decode(drawn)
    assert len(decoded) == 6 and all(action in space for action in decoded)


def test_dict_observations_pass_through_adapter_and_workers():
    cfg = EnvConfig(id="ludus/IdentityDict-v0", num=3)
    with make_envs(cfg, seed=1) as envs:
        here = collect(envs, 20)
    with make_envs(cfg.model_copy(update={"workers": 2}), seed=1) as envs:
        there = collect(envs, 20)
    assert here.obs["a"].shape == (21, 3, 3) and here.obs["b"][0].shape == (21, 3, 1)
    for a, b in zip(tree_leaves(here.obs), tree_leaves(there.obs), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("layout", ["hw", "hwc", "chw"])
def test_pictures_pass_unchanged(layout):
    cfg = EnvConfig(id="ludus/IdentityPixels-v0", args={"layout": layout}, num=2)
    assert probe_spec(cfg).obs.layout == layout
    with make_envs(cfg, seed=1) as envs:
        rows = collect(envs, 5)
    assert rows.obs.dtype == np.uint8 and (rows.obs.reshape(6, 2, -1).mean(-1) == 255 / 4).all()


def test_missing_spaces_are_an_error_in_words(module_of):
    name = module_of("import gymnasium as gym\nclass Empty(gym.Env):\n    pass\n")
    with pytest.raises(LudusError, match="observation_space is missing"):
        probe_spec(EnvConfig(id=f"{name}:Empty"))
