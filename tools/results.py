"""Turns what lies in benchmarks/results into docs/results.md. Measures nothing itself."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tools")]

import atari_learning as learning_curves  # noqa: E402
import learning_classic as classic  # noqa: E402
from records import records  # noqa: E402
from result_files import lines_of, table  # noqa: E402
from results_frozen import frozen_presets  # noqa: E402
from results_processes import processes  # noqa: E402


def learning() -> list[str]:
    rows = classic.known()
    now = [r for r in rows if classic.current(r)]
    old = [r for r in rows if r not in now]
    lines = [
        "## Learning, classic control",
        "",
        "`python benchmarks/learning_classic.py`: three seeds fixed beforehand, the algorithm's",
        f"own preset, greedy evaluation over {classic.EPISODES} episodes of the `last` checkpoint",
        "(in brackets: of the one that is `best` by training return). Seconds are of training with",
        "one thread while other jobs shared the machine.",
        "",
        *added_settings(),
        "",
        "How far the rows can be trusted: presets were changed and run again on these seeds",
        "after one had failed, so they are not untouched; newer ones were chosen on other seeds",
        "(`benchmarks/results/learning_classic_trials.jsonl`; earlier trials were not kept). The",
        "`best` checkpoint counted until double-dqn, seed 1, run again, gave 325.8 with it and 500",
        "with the `last`: of equal training returns the first is kept, when learning is youngest.",
        "",
        "| algorithm | environment | seed 1 | seed 2 | seed 3 | bar | steps | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for algo, env, held, got in classic.verdicts(rows):
        mine = sorted(
            (r for r in now if (r["algo"], r["env"]) == (algo, env)), key=lambda r: r["seed"]
        )
        if not mine:
            continue
        bar, _, kind = classic.BARS[algo, env]
        by_seed = {r["seed"]: f"{x:.1f} ({_best(r)})" for x, r in zip(got, mine, strict=True)}
        cells = [by_seed.get(seed, "-") for seed in classic.SEEDS]
        steps = f"{max(r.get('steps', 0) for r in mine):,}"
        seconds = ", ".join(f"{r.get('train_seconds', 0):.0f}" for r in mine)
        word = "held" if held else "not held" if len(got) == len(classic.SEEDS) else "open"
        verdict = f"{word}: {bar:g} ({kind})"
        row = (algo, env, *cells, verdict, steps, seconds)
        lines.append(f"| {' | '.join(map(str, row))} |")
    if old:
        lines += ["", "Earlier presets, kept for the record:", ""]
        for r in old:
            both = f"last {r.get('last')}, best {r.get('best')}"
            scores = "failed" if "failed" in r else both
            lines.append(f"- {r['algo']} {r['env']} seed {r['seed']}: {scores} ({r['config']})")
    return lines


def added_settings() -> list[str]:
    """What the script adds to presets, by its own table."""
    by_words: dict[str, list[str]] = {}
    for (algo, env), settings in classic.FLEETS.items():
        by_words.setdefault(classic.words_of(settings), []).append(f"{algo} on {env}")
    lines = ["Every preset as it is, except that these words were added:", ""]
    lines += [f"- {', '.join(who)}: `{words}`" for words, who in by_words.items()]
    free = [r for r in classic.known() if r["config"] == classic.FREE_APEX]
    if free:
        lines += [
            "",
            f"Running free, apex-dqn once ended at {_by_seed(free)}, sending 16 rows at a time; in",
            f"lockstep it sends 4. (Free: the rows `{classic.FREE_APEX}` below.)",
        ]
    trials = [r for r in lines_of(classic.TRIALS.name) if r.get("trial") == classic.FREE_TRIAL]
    if trials:
        lines.append(f"In a trial, free with `actor.rows=4`, it ended at {_by_seed(trials)}.")
    return lines


def _by_seed(rows: list[dict[str, Any]]) -> str:
    last = sorted((r["seed"], r["last"]) for r in rows)
    return ", ".join(f"{score:g} (seed {seed})" for seed, score in last)


def bench_table() -> list[str]:
    path = ROOT / "benchmarks" / "results" / "bench_classic.csv"
    if not path.exists():
        return []
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    lines = [
        "",
        "## The suite `classic`",
        "",
        "`ludus bench classic --seeds 3`: the score of a run is the greedy evaluation of its last",
        "weights over 30 episodes; the interval is the stratified bootstrap of the interquartile",
        "mean over seeds, which is rough for three. Data: the `results.csv` of that bench. The",
        "length of BipedalWalker's runs was raised after a trial with seed 1 was too short. The",
        "bench was killed with SIGKILL four times on its way, the last time when 20 of its 36 runs",
        "had finished; they were not touched again. Five runs went on so. A run that is asked to",
        "leave has one checkpoint more, and other episodes from there on ([resume.md](resume.md)):",
        "`ppo` on LunarLander, seed 2, gave 94.1 here and 221.9 when it was left alone.",
        "Its preset has other numbers since, those of the table of learning above.",
        "",
        "| environment | algorithm | mean | std | IQM | 95 % interval | by seed |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in (row for row in rows if row["scores"]):
        mean, std, iqm, low, high = (
            f"{float(r[k]):.1f}" if r[k] else "-" for k in ("mean", "std", "iqm", "low", "high")
        )
        scores = ", ".join(f"{float(x):.1f}" for x in r["scores"].split())
        lines.append(
            f"| {r['env']} | {r['algo']} | {mean} | {std} | {iqm} | {low} to {high} | {scores} |"
        )
    return lines


def saber_pong() -> list[str]:
    found = table("pong_saber_eval.json")
    if not found:
        return []
    lines = [
        "",
        "## A SABER evaluation of a trained agent",
        "",
        f"{found['trained']} `ludus eval RUN --protocol saber`: {found['episodes']} episodes, "
        f"protocol {found['protocol']} ({found['protocol_hash']}), greedy.",
        "",
        "| score | mean | median | std | least | most |",
        "|---|---|---|---|---|---|",
    ]
    for name, known in found["by_length"].items():
        cells = (f"{known[key]:.2f}" for key in ("mean", "median", "std", "min", "max"))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _best(row: dict[str, Any]) -> str:
    return f"{row['best']:.1f}" if "best" in row else "none"


def atari() -> list[str]:
    head = ["", "## Atari on one GPU", "", *atari_speed(), *chased()]
    return [*head, *pong_seconds(), *atari_curves()]


def chased() -> list[str]:
    speed, won = table("atari_speed.json"), lines_of("pong_seconds.jsonl")
    results = [r for r in won if r["kind"] == "result"]
    return records(speed, table("atari_peers.json"), results) if speed else []


def atari_speed() -> list[str]:
    speed = table("atari_speed.json")
    if not speed:
        return []
    facts = speed["machine"]
    lines = [
        f"`ludus bench speed` on one {facts['gpu']} with {facts['cores']} cores, Pong; every",
        "figure of a row was measured in one process, one after the other, with the emulators in",
        "that process too (`fleet=inline`), as were the runs that won Pong below. A row without a",
        "commit in its name is the newest.",
        "",
        "| settings | environments alone, steps/s | training, steps/s | share | updates/s | "
        "done / due | learner alone, updates/s | updates |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for run in speed["runs"]:
        for m in run["modes"].values():
            row = (
                f"{run['label']}, {run['envs']} environments",
                f"{m['ceiling_steps_per_second']:,.0f}", f"{m['steps_per_second']:,.0f}",
                f"{m['of_ceiling']:.3f}", f"{m['updates_per_second']:.0f}",
                f"{m['done_of_due']:.3f}", f"{m['learner_alone_updates_per_second']:.0f}",
                m["compute"]["updates"],
            )  # fmt: skip
            lines.append(f"| {' | '.join(row)} |")
    lines += [
        "",
        "Emulators alone with other numbers of them, measured in the same call, steps/s; in 1.5 to",
        "3 s, before any game ended, which makes them about a tenth faster:",
    ]
    for run in speed["runs"]:
        best = run.get("best_ceilings", {})
        shown = ", ".join(f"{rate:,.0f} with {n}" for n, rate in best.items())
        lines += [f"- {run['label']}: {shown}"] if shown else []
    lines += [
        "",
        "Calls were made at different times, on machines of one kind whose cores were not equally",
        "fast: shares compare, steps/s do not.",
        "",
    ]
    for run in [*speed["runs"], *speed.get("learner", [])]:
        for m in run["modes"].values():
            if "fill_seconds" in m:
                lines.append(
                    f"The learner of {run['label']} alone, {m['compute']['updates']}: "
                    f"{m['learner_alone_updates_per_second']:.0f} updates/s on a replay of "
                    f"{m['learner_alone_on']['rows']:,} rows."
                )
    return lines


def pong_seconds() -> list[str]:
    """The newest row of each algorithm and seed, with the settings of the algorithm's newest."""
    rows = [r for r in lines_of("pong_seconds.jsonl") if r["kind"] == "result"]
    if not rows:
        return []
    settings = {r["algo"]: r["settings"] for r in rows}
    newest = {(r["algo"], r["seed"]): r for r in rows if r["settings"] == settings[r["algo"]]}
    earlier = [r for r in rows if r not in newest.values()]
    return [
        "",
        "Pong won: mean raw score of the last 100 training games >= 18, no sticky actions,",
        "minimal actions, whole games (`benchmarks/pong_seconds.py`). Seconds from the first",
        "training step; the capture of graphs is inside them, building the emulators came before.",
        "The earlier rows that were won in 70 to 73 s had a cap of 18,000 frames a game",
        "(since then 108,000); in all of them heads were rounded to bfloat16 and the learning rate",
        "was annealed over 3M steps. The rows of impala and apex-rainbow-iqn ran side by side, so",
        "their seconds are not a machine's best; ppo's ran alone.",
        "",
        "| algorithm | settings | seed | won after, s | frames | building, s | capture, s | "
        "steps/s |",
        "|---|---|---|---|---|---|---|---|",
        *(_won(r, "") for r in newest.values()),
        *(_won(r, "earlier: ") for r in earlier),
    ]


def _won(r: dict[str, Any], when: str) -> str:
    seconds = r["solved_seconds"]
    won = f"{seconds:.1f}" if seconds else f"not in {r['seconds']:.0f} ({r['final_100']:.1f})"
    capture = r.get("capture_seconds")
    row = (
        r["algo"], when + ", ".join(f"{k}={v}" for k, v in r["settings"].items()), r["seed"], won,
        f"{r['frames'] / 1e6:.1f}M", f"{r['before_first_step_seconds']:.0f}",
        "inside" if capture is None else f"{capture:.1f}", f"{r['steps_per_second']:,.0f}",
    )  # fmt: skip
    return f"| {' | '.join(map(str, row))} |"


def atari_curves() -> list[str]:
    curves = lines_of("atari_learning.jsonl")
    if not curves:
        return []
    lines = [
        "",
        "Learning curves under the protocol `dopamine`, training score over the last million",
        "frames, and published ones (`benchmarks/atari_learning.py`). Held: the last score",
        "is at or above the reference's mean less one standard deviation (rainbow-iqn: IQN's).",
        "Rows are of the commits they name, the newest result of Nov 15, 2026. Trials only chose",
        "settings, which are in the data file; on other games than Pong and Breakout they have no",
        "reference. All with the `atari-fast` presets at the papers' eight samples per step.",
        "The reference's IQN learns from three steps, so ours does here;",
        "the protocol of the reference's PPO is not recorded, and its network is a residual one,",
        "which ours has on Breakout only. IQN's Pong was run with 128 environments first and, as",
        "games that end were begun long before, with 32 after that, on the same seed.",
        "",
        "| algorithm | game | seed | environments | frames: score (reference) | |",
        "|---|---|---|---|---|---|",
    ]
    for r in curves:
        line, verdict = _with_reference(r)
        where = r.get("envs", 128)
        lines.append(f"| {r['algo']} | {r['game']} | {r['seed']} | {where} | {line} | {verdict} |")
    return lines


def _with_reference(r: dict[str, Any]) -> tuple[str, str]:
    """The scores of a run with those of the reference, if there is one, and the verdict."""
    got = {f: score for f, score, _ in r["curve"]}
    _, reference, _ = learning_curves.RUNS.get((r["algo"], r["game"]), (0, {}, ()))
    if not reference:
        whole = ", ".join(f"{f:.0f}M: {score}" for f, score in got.items() if f == int(f))
        return whole or "-", str(r["kind"])
    line = ", ".join(f"{f}M: {got.get(float(f))} ({m} ± {s})" for f, (m, s) in reference.items())
    last, (mean, deviation) = max(reference), reference[max(reference)]
    held = "held" if got.get(float(last), -1e9) >= mean - deviation else "**not held**"
    return line, "trial" if r.get("kind") == "trial" else held


def speed() -> list[str]:
    lines = ["", "## Speed", ""]
    train = table("train_peers.json")
    if train:
        for task, row in train["tasks"].items():
            mid = [sorted(row[k])[len(row[k]) // 2] for k in ("ludus", "sb3")]
            lines.append(
                f"- {task} {row.get('env', 'CartPole-v1')}, {train['threads']} thread: "
                f"{mid[0]:,.0f} steps/s, "
                f"stable-baselines3 {mid[1]:,.0f} steps/s, median ratio {row['median_ratio']:.2f} "
                f"over {len(row['sb3'])} rounds (`benchmarks/train_peers.py`)."
            )
    lines += speed_against_peers()
    where = "`benchmarks/results"
    lines.append(f"- Prioritised replay against cpprb and tianshou: {where}/replay_peers.json`.")
    lines += atari_replay()
    lines.append(f"- Every algorithm on one GPU and on the CPU: {where}/gpu_smoke.json`.")
    return lines


def atari_replay() -> list[str]:
    found = table("atari_replay_peers.json")
    if not found:
        return []
    got, memory = found["compare"], found["memory"]
    rate = got["cycles_per_second"]
    return [
        f"- Atari rows in prioritised replay, {found['what']}, {got['threads']} threads: "
        f"{rate['ludus']:,.0f} cycles/s, {got['ratio_to_cpprb_rows']:.2f} times cpprb's that keeps "
        f"whole rows ({rate['cpprb-rows']:,.0f}), {got['ratio_to_cpprb']:.2f} times its "
        f"fastest way ({got['cpprb_way'].removeprefix('cpprb-')}), "
        f"{got['ratio_when_dropped']:.2f} times where both drop each batch at once "
        f"(cpprb {rate['cpprb-rows-dropped']:,.0f}), "
        f"{got['ratio_to_tianshou']:.2f} times tianshou's; {memory['steps']:,} steps take "
        f"{memory['resident_growth_gb']:.2f} GB (`benchmarks/atari_replay_peers.py`)."
    ]


def speed_against_peers() -> list[str]:
    """Pong on a CPU compared with each peer, in the order they were measured."""
    peers = table("atari_peers.json")
    if not peers:
        return []
    lines = []
    for name, key, part in (
        ("stable-baselines3", "sb3", peers),
        ("tianshou", "tianshou", peers.get("tianshou")),
    ):
        for task, row in (part or {"tasks": {}})["tasks"].items():
            shown = row.get("per_cpu_second", row)["median_ratio"]
            ratios = ", ".join(f"{way} {ratio:.2f}" for way, ratio in shown.items())
            threads = row.get("threads", part["threads"])
            load = row.get("load_at_rounds", [])
            cores = row.get("machine", part["machine"])["cores"]
            clock = "computed seconds" if "per_cpu_second" in row else "the clock"
            busy = f", by {clock} at loads of {load} on {cores} cores" if load else ""
            lines.append(
                f"- {task} Pong on a CPU, torch threads {threads}: median ratio to {name} {ratios} "
                f"over {len(row[key])} rounds{busy} (`benchmarks/atari_peers.py`)."
            )
    return lines


def precision() -> list[str]:
    rows = lines_of("precision_learning.jsonl")
    if not rows:
        return []
    lines = [
        "",
        "## bf16 on a CPU",
        "",
        "Mean score of the last 200 training games of PPO on Breakout after 150,000 steps, the",
        "same seeds in both precisions (`benchmarks/precision_learning.py`):",
        "",
    ]
    for kind in dict.fromkeys(row["precision"] for row in rows):
        got = sorted((r["seed"], r["last_200"]) for r in rows if r["precision"] == kind)
        lines.append(f"- {kind}: " + ", ".join(f"{score} (seed {seed})" for seed, score in got))
    return lines


def main() -> None:
    parts = [
        *learning(),
        *frozen_presets(),
        *bench_table(),
        *saber_pong(),
        *speed(),
        *precision(),
        *processes(),
        *atari(),
    ]
    text = "\n".join(["# Results", "", *parts]) + "\n"
    (ROOT / "docs" / "results.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
