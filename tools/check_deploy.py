"""Check deploy/ with the programs that read it: packer, terraform, cloud-init and linters.

    python tools/check_deploy.py                 the programs that are installed
    apt-get install packer cloud-init shellcheck

tests/deploy checks the same files without any program. No engine for containers is needed: images
are linted, not built.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
PACKER, TERRAFORM = DEPLOY / "aws" / "packer", DEPLOY / "aws" / "terraform"
ROLES = ("learner", "actor", "replay", "evaluator")
PACKER_VARIABLES = ("sources=ludus.tar.gz", 'build_cidrs=["192.0.2.10/32"]')
# What Terraform would fill in, for each kind of machine.
SETTINGS = {
    "DEPLOY_HEAD": "10.77.0.10:6379",
    "DEPLOY_TRAIN": "impala CartPole-v1 steps=5M lr=1e-3->0",
    "DEPLOY_ALL_ACTORS": 16,
    "DEPLOY_SECRET": "arn:aws:secretsmanager:eu-central-1:123456789012:secret:ludus-ray-token",
}


def shell_scripts() -> list[Path]:
    return sorted([*DEPLOY.rglob("*.sh"), *DEPLOY.rglob("*.sbatch")])


def user_data(install: bool, units: str = "ludus@actor") -> str:
    """user-data.yaml.tftpl as Terraform's templatefile() would render it."""
    text = (TERRAFORM / "user-data.yaml.tftpl").read_text(encoding="utf-8")
    loop = re.compile(r"%\{ for key, value in settings ~\}\n\s*(.*\n)%\{ endfor ~\}\n")
    body = loop.search(text)
    assert body is not None, "the template lists no settings"
    lines = [
        body[1].replace("${key}", key).replace("${value}", str(value))
        for key, value in SETTINGS.items()
    ]
    text = loop.sub("".join(f"      {line}" for line in lines).replace("\\", r"\\"), text)
    branch = re.compile(r"%\{ if install ~\}\n(.*?)%\{ endif ~\}\n", re.DOTALL)
    text = branch.sub(lambda found: found[1] if install else "", text)
    values = {"units": units, "torch": "cpu", "atari": "0", "bucket": "ludus-0000"}
    for name, value in values.items():
        text = text.replace(f"${{{name}}}", value)
    return text


def run(*words: str, cwd: Path = ROOT) -> tuple[bool, str]:
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True)
    return done.returncode == 0, (done.stdout + done.stderr).strip()


def packer_validate(
    role: str, change: Callable[[str], str] = lambda text: text
) -> tuple[bool, str]:
    """Validate the template of one role; `change` breaks a copy of it.

    plugins.pkr.hcl is left out, because Packer 1.6 does not know its block.
    """
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        shutil.copy(PACKER / "common.pkr.hcl", place)
        name = f"{role}.pkr.hcl"
        (place / name).write_text(change((PACKER / name).read_text("utf-8")), "utf-8")
        (place / "ludus.tar.gz").touch()
        variables = [word for value in PACKER_VARIABLES for word in ("-var", value)]
        return run("packer", "validate", *variables, ".", cwd=place)


def cloud_init_schema(text: str) -> tuple[bool, str]:
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        return run("cloud-init", "schema", "--config-file", file.name)


def terraform_check() -> tuple[bool, str]:
    """`terraform validate` and `terraform test`, which creates nothing and needs no account.

    The provider comes from the registry, or from the folder in TF_PLUGIN_DIR. ConnectionError:
    neither has it.
    """
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "terraform"
        shutil.copytree(
            TERRAFORM, place, ignore=shutil.ignore_patterns(".terraform*", "*.tfstate*")
        )
        words = ["init", "-backend=false", "-input=false"]
        if os.environ.get("TF_PLUGIN_DIR"):
            words.append(f"-plugin-dir={os.environ['TF_PLUGIN_DIR']}")
        for command in (["fmt", "-check", "-recursive"], words, ["validate"], ["test"]):
            good, said = run("terraform", *command, "-no-color", cwd=place)
            if not good and command is words:
                raise ConnectionError(said)
            if not good:
                return good, said
        return good, said


def checks() -> list[tuple[str, str, Callable[[], tuple[bool, str]]]]:
    """The program, what it looks at, and a function that asks it."""
    found: list[tuple[str, str, Callable[[], tuple[bool, str]]]] = []
    for role in ROLES:
        found.append(("packer", role, lambda role=role: packer_validate(role)))
    for install in (True, False):
        name = "user data, with" + ("out" if install else "") + " an image"
        found.append(
            ("cloud-init", name, lambda install=install: cloud_init_schema(user_data(install)))
        )
    for path in shell_scripts():
        found.append(("shellcheck", path.name, lambda path=path: run("shellcheck", str(path))))
    for name in ("Dockerfile", "Dockerfile.cuda"):
        found.append(("hadolint", name, lambda name=name: run("hadolint", str(DEPLOY / name))))
    found.append(("terraform", "aws/terraform", terraform_check))
    return found


def main() -> int:
    failed = 0
    for program, what, ask in checks():
        if shutil.which(program) is None:
            print(f"{program}: not installed, {what} was not looked at")
            continue
        try:
            good, said = ask()
        except ConnectionError:
            print(f"{program}: cannot fetch its provider, {what} was not looked at")
            continue
        failed += not good
        print(f"{program}: {what}: " + ("good" if good else f"FAILED\n{said}"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
