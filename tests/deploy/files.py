"""The files of deploy/, read as data."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import hcl2
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
AWS = DEPLOY / "aws"
SCHEMAS = Path(__file__).parent / "schemas"


def all_files() -> list[Path]:
    """Every file of deploy/ that belongs to the repository."""
    ignored = (".terraform", "ludus.tar.gz", "terraform.tfvars", ".tfstate", "__pycache__")
    return sorted(
        path
        for path in DEPLOY.rglob("*")
        if (path.is_file() and not any(word in part for part in path.parts for word in ignored))
        or path.name == "terraform.tfvars.example"
    )


def text(name: str) -> str:
    return (DEPLOY / name).read_text(encoding="utf-8")


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all(text(name)))


def schema(name: str) -> Any:
    return json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))


def locked(name: str) -> dict[str, str]:
    """Distributions of a lock file and their versions."""
    found = re.findall(r"^([a-z0-9-]+)==(\S+)", (ROOT / name).read_text("utf-8"), re.MULTILINE)
    return dict(found)


def _load_tool(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


CHECKS = _load_tool("check_deploy")


def _bare(value: Any) -> Any:
    """Without the quotes that hcl2 keeps around strings, and without its comments."""
    if isinstance(value, dict):
        return {_bare(k): _bare(v) for k, v in value.items() if not k.startswith("__")}
    if isinstance(value, list):
        return [_bare(item) for item in value]
    return value.strip('"') if isinstance(value, str) else value


def parsed(folder: Path) -> dict[str, list[Any]]:
    """All blocks of the files of Terraform or Packer in a folder, by their kind."""
    blocks: dict[str, list[Any]] = {}
    for path in sorted([*folder.glob("*.tf"), *folder.glob("*.pkr.hcl")]):
        with path.open(encoding="utf-8") as file:
            for kind, found in _bare(hcl2.load(file)).items():
                blocks.setdefault(kind, []).extend(found)
    return blocks


def resources(blocks: dict[str, list[Any]], kind: str = "resource") -> dict[str, Any]:
    """type.name -> body."""
    return {
        f"{first}.{name}": body
        for block in blocks.get(kind, [])
        for first, named in block.items()
        for name, body in named.items()
    }
