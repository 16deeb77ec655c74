"""The data types that modules exchange: NamedTuples of time-major tensors [T, B, ...].

Import them from here; the modules beneath only keep the files short.
"""

from __future__ import annotations

from ludus.types.context import (
    Ctx,
    Group,
)
from ludus.types.rows import (
    AHEAD,
    ORIGIN,
    AnyRows,
    Before,
    Chunk,
    EpisodeEnd,
    Extras,
    Field,
    Rows,
    Step,
    flat_rows,
    map_fields,
    map_rows,
    numpy_dtype,
    row_fields,
    unflatten_rows,
)
from ludus.types.samples import (
    Loss,
    Sample,
    Traj,
    Transition,
)
from ludus.types.specs import (
    ActionSpec,
    ArraySpec,
    Continuous,
    Discrete,
    EnvSpec,
    MultiDiscrete,
)
from ludus.types.trees import (
    Tree,
    tree_leaves,
    tree_map,
    tree_paths,
    tree_unflatten,
)

__all__ = [
    "AHEAD",
    "ORIGIN",
    "ActionSpec",
    "AnyRows",
    "ArraySpec",
    "Before",
    "Chunk",
    "Continuous",
    "Ctx",
    "Discrete",
    "EnvSpec",
    "EpisodeEnd",
    "Extras",
    "Field",
    "Group",
    "Loss",
    "MultiDiscrete",
    "Rows",
    "Sample",
    "Step",
    "Traj",
    "Transition",
    "Tree",
    "flat_rows",
    "map_fields",
    "map_rows",
    "numpy_dtype",
    "row_fields",
    "tree_leaves",
    "tree_map",
    "tree_paths",
    "tree_unflatten",
    "unflatten_rows",
]
