"""Rules a reader cannot see in one file: who may import whom, sizes, no pickle, light imports."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "ludus"
FILES = sorted(PACKAGE.rglob("*.py"))

# Everything below may import these; they import only each other.
GROUND = {
    "types",
    "errors",
    "units",
    "schedules",
    "seeding",
    "plan",
    "contract",
    "secret_masking",
    "process",
}
MAY_IMPORT = {
    "types": set(),
    "errors": set(),
    "units": set(),
    "process": {"errors"},
    "secret_masking": {"errors"},
    "seeding": set(),
    "schedules": {"units"},
    "plan": {"schedules", "errors"},
    "contract": {"types", "plan", "schedules"},
    "ops": {"types"},
    "optim": GROUND,
    "explore": GROUND,
    "nets": GROUND | {"ops"},
    "replay": GROUND,  # no nets
    "envs": GROUND,
    "track": {"types", "errors", "units", "secret_masking", "process", "__version__"},
    "settings": GROUND | {"envs", "presets", "registry", "track"},
    "compute": GROUND | {"settings"},
    "collect": GROUND | {"envs", "nets", "replay", "compute"},
    "learn": GROUND | {"nets", "optim", "replay", "compute", "settings", "track"},
    "stats": {"types", "errors", "units", "secret_masking", "envs", "track", "settings"},
    "algos": GROUND | {"ops", "nets", "explore", "optim"},
}
# These build on the rest, and must not know what they run.
MUST_NOT_IMPORT = {
    "run": {"algos", "registry", "cli", "api", "presets"},
    "fleets": {"algos", "registry", "cli", "api", "presets", "evals", "reporting"},
    "evals": {"algos", "cli", "api", "fleets"},
    "reporting": {"algos", "run", "fleets", "collect", "learn", "cli", "api"},
    "registry": {"algos", "run", "cli", "api", "settings"},
}


def area(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Areas of ludus a file imports, also inside functions; type-checking imports do not count."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    hidden = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            parts = node.module.split(".")
            if parts[0] == "ludus":
                found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                if parts[0] == "ludus" and len(parts) > 1:
                    found.add(parts[1])
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_import_rule(path):
    name = area(path)
    used = imports(path) - {name}
    if name in MAY_IMPORT:
        assert used <= MAY_IMPORT[name], f"{name} may not import {used - MAY_IMPORT[name]}"
    assert not used & MUST_NOT_IMPORT.get(name, set())


def test_a_run_is_put_together_in_one_place():
    """Two others see all parts: a hogwild worker is a small run of its own, and precheck.py finds
    out whether a run could be built."""
    parts = {"envs", "replay", "learn", "fleets"}
    own = {path: imports(path) | {area(path)} for path in FILES}
    whole = {str(path.relative_to(PACKAGE)) for path, used in own.items() if parts <= used}
    assert whole == {"run/build.py", "fleets/hogwild/worker.py", "precheck.py"}


def test_the_import_rule_sees_the_packages_it_names():
    there = {area(path) for path in FILES}
    assert set(MAY_IMPORT) | set(MUST_NOT_IMPORT) <= there


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_sizes(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 400
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "a file says what it is"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            # A verb's signature is its list of options, and long for that reason.
            body = node.body[0].lineno if area(path) == "cli" else node.lineno
            assert (node.end_lineno or 0) - body + 1 <= 50, f"{node.name} is too long"


def test_no_pickle_on_any_load_path():
    """Loading a run never executes what is in its files."""
    forbidden = {"pickle", "cPickle", "dill", "joblib", "shelve", "marshal", "cloudpickle"}
    calls = {"torch.load", "torch.save", "np.load", "numpy.load", "yaml.load", "yaml.unsafe_load"}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert not {a.name.split(".")[0] for a in node.names} & forbidden, path
            elif isinstance(node, ast.ImportFrom) and node.module:
                assert node.module.split(".")[0] not in forbidden, path
            elif isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                unsafe = any(
                    k.arg == "allow_pickle" and ast.unparse(k.value) != "False"
                    for k in node.keywords
                )
                assert not unsafe, f"{path}: allow_pickle"
                if name in calls:
                    safe = {k.arg: ast.unparse(k.value) for k in node.keywords}
                    assert safe.get("allow_pickle") == "False", f"{path}: {name}"


def test_importing_ludus_is_light():
    code = (
        "import sys, ludus, ludus.cli.main\n"
        "heavy = {'torch', 'numpy', 'gymnasium', 'pydantic', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert callable(ludus.config) and ludus.StopAt.__name__ == 'StopAt'\n"
        "assert 'torch' in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_modules_of_users_import_what_they_did_from_two_places():
    """Names that moved to ludus/plan, ludus/types and ludus/schedules.py."""
    import ludus.contract
    import ludus.types

    for module in (ludus.contract, ludus.types):
        assert all(hasattr(module, name) for name in module.__all__)
    moved = {
        "Plan",
        "Feed",
        "Uniform",
        "Prioritized",
        "NStep",
        "Episode",
        "Frozen",
        "ramp",
        "Share",
    }
    assert moved <= set(ludus.contract.__all__)
    assert {"tree_map", "EnvSpec", "Rows", "Traj", "Loss", "Ctx"} <= set(ludus.types.__all__)


def test_nothing_forbidden_by_name():
    names = {path.name for path in FILES} | {path.parent.name for path in FILES}
    assert not names & {"utils.py", "helpers.py", "common.py", "common", "utils"}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                assert not node.name.startswith("Base") and not node.name.endswith("Mixin")
