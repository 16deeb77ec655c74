"""Trees of tensors: nested dicts and tuples, and functions on their leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

# A tensor, or a dict, tuple or NamedTuple of trees. Leaves share their leading dimensions.
Tree: TypeAlias = Any


def tree_map(fn: Callable[..., Any], tree: Tree, *rest: Tree) -> Tree:
    """Apply `fn` to each leaf, together with the corresponding leaves of the trees in `rest`."""
    if isinstance(tree, Mapping):
        return {k: tree_map(fn, tree[k], *(r[k] for r in rest)) for k in tree}
    if isinstance(tree, tuple):
        parts = [tree_map(fn, t, *(r[i] for r in rest)) for i, t in enumerate(tree)]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return fn(tree, *rest)


def tree_leaves(tree: Tree) -> list[Any]:
    """Return the leaves of a tree in a fixed order (dicts in insertion order)."""
    if isinstance(tree, Mapping):
        return [leaf for k in tree for leaf in tree_leaves(tree[k])]
    if isinstance(tree, tuple):
        return [leaf for t in tree for leaf in tree_leaves(t)]
    return [tree]


def tree_unflatten(like: Tree, leaves: Iterable[Any]) -> Tree:
    """Return a tree like `like` with these leaves: the inverse of `tree_leaves`."""
    rest = iter(leaves)
    return tree_map(lambda _: next(rest), like)


def tree_paths(tree: Tree, prefix: str = "obs") -> list[str]:
    """Return a name for each leaf, in the order of `tree_leaves`: obs, obs.camera, obs.0 ..."""
    if isinstance(tree, Mapping):
        return [p for k in tree for p in tree_paths(tree[k], f"{prefix}.{k}")]
    if isinstance(tree, tuple):
        names = getattr(tree, "_fields", range(len(tree)))
        return [p for k, t in zip(names, tree, strict=True) for p in tree_paths(t, f"{prefix}.{k}")]
    return [prefix]
