"""`make example`: the report in docs/ from real runs, 3 algorithms x 3 seeds x 2 environments.

Runs that are there already are continued or kept, so it may be stopped and started again. With a
chromium, also the picture of it for the README.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ALGOS = ("ppo", "dqn", "rainbow")
ENVS = ("CartPole-v1", "Acrobot-v1")
SEEDS = (1, 2, 3)
TITLE = "PPO, DQN and Rainbow on CartPole and Acrobot"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def train(job: tuple[str, str, int], runs: Path, steps: str) -> int:
    algo, env, seed = job
    words = [algo, env, f"steps={steps}", f"seed={seed}", "eval.every=5k", "eval.episodes=10"]
    place = ["--runs-dir", str(runs), "--run", f"{env}-{algo}-s{seed}", "--quiet"]
    done = subprocess.run(
        [sys.executable, "-m", "ludus", "train", *words, *place], cwd=ROOT, capture_output=True
    )
    print(f"{algo} {env} seed {seed}: {'done' if done.returncode == 0 else 'failed'}", flush=True)
    return done.returncode


def picture(page: Path, out: Path) -> bool:
    program = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if program is None:
        print("no chromium here: no picture (Debian: apt-get install chromium)")
        return False
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    subprocess.run(
        [program, *words, "--window-size=1280,1560", f"--screenshot={out}", page.as_uri()],
        check=True,
        capture_output=True,
    )
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs/example"), help="from the root")
    parser.add_argument("--steps", default="50k")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "example-report.html")
    options = parser.parse_args()
    jobs = [(algo, env, seed) for env in ENVS for algo in ALGOS for seed in SEEDS]
    with ThreadPoolExecutor(options.jobs) as pool:
        codes = list(pool.map(lambda job: train(job, options.runs, options.steps), jobs))
    if any(codes):
        return 1
    from ludus.report import find_runs, write_report

    page = write_report(find_runs([ROOT / options.runs], ROOT), options.out, title=TITLE)
    picture(page, page.with_suffix(".png"))
    print(f"{page} ({page.stat().st_size / 1000:.0f} KB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
