"""Every registered algorithm's loss is tested against a reference that knows nothing of it.

A new algorithm adds a row: the tests that compute its loss again, from tests/truth and plain loops,
each marked accept(150)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from ludus import registry

ALGOS = Path(__file__).parents[1] / "algos"
# A family, or a name that differs from its family in its loss: the file and its tests.
REFERENCES: dict[str, tuple[str, ...]] = {
    "dqn": ("test_loss_truths.py", "test_the_loss_of_the_dqn_family_is_the_papers"),
    "ppo": ("test_loss_truths.py", "test_the_loss_of_ppo_is_the_papers"),
    "a2c": ("test_a2c.py", "test_the_loss_is_the_equation_written_out"),
    "reinforce": ("test_reinforce.py", "test_the_loss_is_the_equation_written_out"),
    "impala": (
        "test_impala.py",
        "test_a_lagging_policy_is_corrected_with_each_clip_in_its_place",
        "test_one_actor_without_lag_has_the_gradient_of_a2c",
    ),
    "a3c": (
        "test_a3c.py",
        "test_the_loss_is_the_papers_written_out_and_summed",
        "test_the_loss_of_continuous_actions_is_the_papers_written_out",
    ),
    "sac": (
        "test_sac.py",
        "test_the_loss_of_continuous_actions_is_the_papers",
        "test_the_loss_of_discrete_actions_is_an_expectation_under_the_policy",
    ),
    "pqn": (
        "test_pqn.py",
        "test_targets_equal_the_recursion_with_every_kind_of_end",
        "test_the_loss_is_half_the_square_and_dummy_rows_are_inert",
    ),
    "td3": ("test_td3.py", "test_the_loss_is_the_papers"),
    "async": ("test_async_q.py", "test_targets_and_the_summed_loss_equal_plain_loops"),
}


def marks(node: ast.FunctionDef) -> set[int]:
    """The acceptance lines that a test carries."""
    calls = [d for d in node.decorator_list if isinstance(d, ast.Call)]
    named = [c for c in calls if isinstance(c.func, ast.Attribute) and c.func.attr == "accept"]
    return {ast.literal_eval(arg) for call in named for arg in call.args}


@pytest.mark.accept(150)
@pytest.mark.parametrize("entry", registry.entries(), ids=lambda entry: entry.name)
def test_every_loss_has_a_reference(entry) -> None:
    row = REFERENCES.get(entry.name) or REFERENCES.get(entry.family)
    assert row is not None, f"{entry.name}: add a row with the tests of its loss"
    file, *names = row
    tree = ast.parse((ALGOS / file).read_text(encoding="utf-8"))
    imported = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module}
    assert any(module.startswith("tests.truth") for module in imported), "independent equations"
    tests = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    assert names and set(names) <= set(tests)
    assert all(150 in marks(tests[name]) for name in names)
