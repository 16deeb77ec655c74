"""Trees of dicts, tuples and NamedTuples."""

from __future__ import annotations

from typing import NamedTuple

from ludus.types import tree_leaves, tree_map, tree_paths


class Pair(NamedTuple):
    left: object
    right: object


def test_named_tuples_are_descended_into_and_come_back_as_themselves() -> None:
    tree = {"a": Pair(1, (2, Pair(3, 4)))}
    assert tree_leaves(tree) == [1, 2, 3, 4]
    got = tree_map(lambda x, y: x + y, tree, tree)
    assert got == {"a": Pair(2, (4, Pair(6, 8)))}
    assert type(got["a"]) is Pair and type(got["a"].right[1]) is Pair
    assert tree_paths(tree) == ["obs.a.left", "obs.a.right.0", "obs.a.right.1.left",
                                "obs.a.right.1.right"]  # fmt: skip


def test_empty_and_single_trees() -> None:
    assert tree_leaves(()) == [] and tree_map(str, ()) == ()
    assert tree_leaves(1) == [1] and tree_paths(1) == ["obs"]
