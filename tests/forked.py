"""`ludus` commands in processes of their own that do not import torch again.

`run` sends a command to a server: a process that has imported Ludus and forks a child for each
command. The child runs what `python -m ludus` runs, until it ends or is killed. There is one server
for each hash seed. It ends with the process of the tests, whose end of the pipe closes then.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_servers: dict[int, subprocess.Popen[str]] = {}


def run(
    *words: str,
    hash_seed: int = 1,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Any:
    """`ludus WORDS...` to its end: exit code (-N: killed by signal N) and printed text, as
    `subprocess.CompletedProcess`. Runs in the project's folder, or in `folder`, which is then on
    Python's path as if PYTHONPATH named it."""
    server = _servers.get(hash_seed)
    if server is None or server.poll() is not None:
        server = _servers[hash_seed] = _start(hash_seed)
    assert server.stdin is not None and server.stdout is not None
    with ExitStack() as files:
        out, err = (
            files.enter_context(tempfile.NamedTemporaryFile("r", encoding="utf-8"))
            for _ in range(2)
        )
        request = {
            "words": words, "environ": dict(environ or {}), "files": [out.name, err.name],
            "folder": str(folder) if folder else None,
        }  # fmt: skip
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        return subprocess.CompletedProcess(words, code, out.read(), err.read())


def _start(hash_seed: int) -> subprocess.Popen[str]:
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": str(hash_seed)}
    return subprocess.Popen(
        [sys.executable, "-P", __file__], cwd=ROOT, env=environ, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip


def _serve() -> None:
    sys.path.insert(0, str(ROOT))
    main = importlib.import_module("ludus.cli.main").main
    for name in ("ludus.run.session", "ludus.run.build", "ludus.algos.dqn"):  # with torch
        importlib.import_module(name)
    del sys.path[0]
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os.environ.update(request["environ"])
            for number, name in enumerate((os.devnull, *request["files"])):
                os.dup2(os.open(name, os.O_WRONLY if number else os.O_RDONLY), number)
            if request["folder"]:
                os.chdir(request["folder"])
                sys.path.insert(0, request["folder"])
            sys.argv = ["ludus", *request["words"]]
            main()  # ends this process
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    _serve()
