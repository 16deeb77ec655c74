"""Every algorithm on a GPU: trains, checkpoints, resumes, and acts as on the CPU.

    python benchmarks/gpu_smoke.py [--steps 4000]

Prints a row per algorithm: updates/s on each device, the largest difference of greedy Q values or
policy outputs between devices for the same weights. Writes benchmarks/results/gpu_smoke.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import torch

import ludus
from ludus import registry
from ludus.evals.agent import load_agent

HERE = Path(__file__).parent


def outputs(net: torch.nn.ModuleDict, obs: torch.Tensor) -> torch.Tensor:
    online = net["online"]
    with torch.no_grad():
        if hasattr(online, "values"):
            return torch.cat([online.policy(online.torso(obs)), online.values(obs)[:, None]], -1)
        return online(obs, None, noise=False).q


def one(name: str, steps: int, device: str, folder: str, **more: object) -> dict[str, float]:
    settings = {"run.device": device, "log.tensorboard": False, "run.steps": steps,
                "eval.episodes": 4, **more}  # fmt: skip
    cfg = ludus.config(name, "CartPole-v1", **settings)
    start = time.perf_counter()
    run = ludus.train(cfg, runs_dir=folder, quiet=True)
    seconds = time.perf_counter() - start
    again = ludus.resume(run.path, steps=f"+{steps // 2}", quiet=True)
    assert again.step > run.step and again.updates > run.updates
    agent = load_agent(again.path)
    obs = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    here = outputs(agent.net, obs)
    there = outputs(agent.net.to(device), obs.to(device)).cpu()
    score = load_agent(again.path).evaluate(10).mean
    return {"updates_per_second": run.updates / seconds, "score": score,
            "difference": float((here - there).abs().max())}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4000)
    args = parser.parse_args()
    result: dict = {"torch": torch.__version__, "algorithms": {}}
    devices = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
    result["gpu"] = torch.cuda.get_device_name() if len(devices) == 2 else None
    cases: dict[str, dict] = {
        entry.name: {} for entry in registry.BUILT_IN if "discrete" in entry.actions
    }
    cases["ppo, normalized"] = {"env.normalize.obs": True, "env.normalize.reward": True}
    for name, more in cases.items():
        with tempfile.TemporaryDirectory() as folder:
            row = {d: one(name.split(",")[0], args.steps, d, folder, **more) for d in devices}
        result["algorithms"][name] = row
        print(name, json.dumps(row), flush=True)
    text = json.dumps(result, indent=1) + "\n"
    out = Path(sys.argv[0]).parent / "results" / "gpu_smoke.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(text)


if __name__ == "__main__":
    main()
