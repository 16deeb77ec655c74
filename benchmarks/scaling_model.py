"""How fast a run on many machines can be, computed from the speeds of its parts. Measures nothing.

    python benchmarks/scaling_model.py                      # the tables
    python benchmarks/scaling_model.py --write              # into docs/scaling.md, with the plot
    python benchmarks/scaling_model.py --actors 64 --learners 2 --network 100 --actor-steps 700

A run is as fast as its slowest part: actors that act, the network into the learners' machines,
replay that takes rows in, learners that update. The speed of each part alone is read from
benchmarks/results; what no file there holds is an assumption, listed as such in the tables.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "scaling.md"
IMAGE = ROOT / "docs" / "images" / "scaling.svg"
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)
MARKS = {name: (f"<!-- {name} -->", f"<!-- end of {name} -->") for name in ("check", "table")}


def result(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def speed_of(label: str) -> dict:
    """A run of atari_speed.json: one process, 16 cores and one H200."""
    (run,) = [run for run in result("atari_speed")["runs"] if run["label"] == label]
    return run["modes"]["auto"]


def actor_steps() -> float:
    """Steps/s of an actor with a core of its own. Two actors and their learner shared two cores in
    this measurement, so that an actor alone is faster: a bound from below."""
    pong = result("impala_peers")["tasks"]["pong"]
    return statistics.median(pong["steps_per_second"]["processes"]) / pong["machine"]["cores"]


@dataclass(frozen=True)
class Model:
    """A run on Pong: speeds of the parts, and how many there are of each."""

    algo: str
    steps_per_update: float  # measured: actor steps for each update
    updates: float  # measured: updates/s of one learner alone, on an H200
    actor_steps: float  # measured, from below: steps/s of an actor on one core
    row_bytes: float  # measured: a row of Atari in memory
    weight_bytes: float  # counted: parameters that actors need, in float32
    insert_rows: float = math.inf  # measured: rows/s that one replay takes in
    # Assumptions, to be set to those of your machines.
    network: float = 25.0  # gigabits/s of the learner's machine, each way
    actors_per_node: int = 8
    publish_seconds: float = 1.0  # between versions of weights, by actor.publish_every
    chunk_steps: float = 160.0  # steps in one message: 20 rows of 8 environments
    chunks: float = 2_000.0  # messages/s that one learner takes from Ray
    # How many.
    actors: int = 1
    learners: int = 1

    @property
    def limits(self) -> dict[str, float]:
        """Steps/s that each part would allow by itself. Each learner has a machine, a share of the
        actors and a replay of its own."""
        rows_in = self.network * 1e9 / 8 / self.row_bytes
        return {
            "actors": self.actors * self.actor_steps,
            "learner": self.learners * self.updates * self.steps_per_update,
            "network": self.learners * rows_in,
            "replay": self.learners * self.insert_rows,
            "messages": self.learners * self.chunks * self.chunk_steps,
            "weights": math.inf if self.weights_fit else 0.0,
        }

    @property
    def steps(self) -> float:
        return min(self.limits.values())

    @property
    def bottleneck(self) -> str:
        return min(self.limits, key=self.limits.__getitem__)

    @property
    def row_rate(self) -> float:
        """Bytes/s of rows, all learners together."""
        return self.steps * self.row_bytes

    @property
    def weight_rate(self) -> float:
        """Bytes/s of weights: every node takes each version once, all its actors read that copy."""
        return (
            math.ceil(self.actors / self.actors_per_node) * self.weight_bytes / self.publish_seconds
        )

    @property
    def weights_fit(self) -> bool:
        return self.weight_rate <= self.learners * self.network * 1e9 / 8

    @property
    def publish_every(self) -> int:
        """The setting that gives `publish_seconds`."""
        return max(1, round(self.updates_made * self.publish_seconds))

    @property
    def updates_made(self) -> float:
        """Updates/s of one learner."""
        return self.steps / self.steps_per_update / self.learners

    @property
    def busy(self) -> float:
        """The share of the actors' time that is used; the rest they wait for the learner."""
        return self.steps / self.limits["actors"]

    @property
    def hours(self) -> tuple[float, float]:
        """Hours of learners and of actors' cores for a billion steps."""
        wall = 1e9 / self.steps / 3600
        return self.learners * wall, self.actors * wall

    def needed_learners(self) -> int:
        """Learners with which nothing but the actors is the limit."""
        for learners in range(1, 1000):
            if replace(self, learners=learners).bottleneck == "actors":
                return learners
        raise ValueError("no number of learners keeps up")


def models() -> list[Model]:
    memory = result("atari_replay_peers")
    rows = memory["memory"]["bytes_per_step"]
    inserts = 64 * memory["compare"]["parts_per_second"]["ludus"]["add"]  # 64 rows each
    found = []
    for algo, parameters in (("impala", 1.094e6), ("apex-dqn", 3.3e6)):  # ludus train ... --dry-run
        run = speed_of(algo)
        found.append(
            Model(
                algo=algo,
                steps_per_update=run["steps_per_second"] / run["updates_per_second"],
                updates=run["learner_alone_updates_per_second"],
                actor_steps=actor_steps(),
                # An unroll of 20 rows has an observation more.
                row_bytes=rows * (21 / 20 if algo == "impala" else 1),
                weight_bytes=4 * parameters,
                insert_rows=inserts if algo == "apex-dqn" else math.inf,
            )
        )
    return found


def checks() -> list[tuple[str, float, float]]:
    """The rule itself, against whole runs: what it says from the parts measured alone, and the run.
    The parts are emulators with acting on the one hand, updates on the other."""
    found = []
    for label in ("ppo", "rainbow-iqn", "impala", "apex-dqn"):
        run = speed_of(label)
        per_update = run["steps_per_second"] / run["updates_per_second"]
        parts = (
            run["acting_alone_steps_per_second"],
            (run["learner_alone_updates_per_second"] * per_update),
        )
        found.append((label, min(parts), run["steps_per_second"]))
    return found


def check_table() -> str:
    lines = [
        "| `atari_speed.json` | the rule says | measured | measured / rule |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {name} | {said:,.0f} steps/s | {got:,.0f} steps/s | {got / said:.2f} |"
        for name, said, got in checks()
    ]
    return "\n".join(lines)


def table(model: Model) -> str:
    lines = [
        "| actors | nodes | they offer, steps/s | one learner: steps/s | updates/s | rows, MB/s "
        "| weights, MB/s | limit | actors busy | learners to keep up |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for actors in SIZES:
        m = replace(model, actors=actors)
        lines.append(
            f"| {actors:,} | {math.ceil(actors / m.actors_per_node)} | {m.limits['actors']:,.0f} "
            f"| {m.steps:,.0f} | {m.updates_made:,.1f} | {m.row_rate / 1e6:,.0f} "
            f"| {m.weight_rate / 1e6:,.0f} | {m.bottleneck} | {m.busy:.0%} "
            f"| {m.needed_learners()} |"
        )
    return "\n".join(lines)


def limits_of(model: Model) -> str:
    """The limits other than the actors, the lowest first."""
    found = sorted((steps, name) for name, steps in model.limits.items() if name != "actors")
    return ", ".join(f"{name} {steps:,.0f}" for steps, name in found if math.isfinite(steps))


def tables() -> str:
    parts = []
    for model in models():
        few, many = (replace(model, actors=n) for n in (16, 1000))
        enough = replace(many, learners=many.needed_learners())
        parts.append(
            f"### {model.algo} on Pong\n\n"
            f"From the measurements: an actor makes {model.actor_steps:,.0f} steps/s or more, a "
            f"learner {model.updates:,.0f} updates/s of {model.steps_per_update:,.0f} steps each, "
            f"a row has {model.row_bytes:,.0f} bytes, weights have "
            f"{model.weight_bytes / 1e6:.1f} MB. What one learner's side allows, in steps/s: "
            f"{limits_of(many)}.\n\n{table(model)}\n\n"
            "Hours of machines for a billion steps (learner, cores of actors): "
            + ", ".join(
                f"{m.actors:,} actors and {m.learners} learner{'s' if m.learners > 1 else ''}: "
                f"{m.hours[0]:,.1f} and {m.hours[1]:,.0f}"
                for m in (few, many, enough)
            )
            + "."
        )
    return "\n\n".join(parts)


def between(text: str, mark: str, new: str) -> str:
    begin, end = MARKS[mark]
    before, rest = text.split(begin)
    return f"{before}{begin}\n{new}\n{end}{rest.split(end)[1]}"


def page(text: str) -> str:
    return between(between(text, "check", check_table()), "table", tables())


# The plot, drawn as the others in docs/images.
COLORS = {"impala": "#2563eb", "apex-dqn": "#c2410c"}
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 620, 380, 62, 120, 36, 46
LOW, HIGH = 300.0, 1e6


def place(actors: float, steps: float) -> tuple[float, float]:
    x = LEFT + (WIDTH - LEFT - RIGHT) * math.log(actors) / math.log(SIZES[-1])
    y = TOP + (HEIGHT - TOP - BOTTOM) * math.log(HIGH / steps) / math.log(HIGH / LOW)
    return x, y


def words(x: float, y: float, said: str, anchor: str = "middle", color: str = "#444") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="{color}">{said}</text>'


def axes() -> list[str]:
    parts = []
    for steps in (1e3, 1e4, 1e5, 1e6):
        (x1, y), (x2, _) = place(1, steps), place(SIZES[-1], steps)
        parts.append(f'<path d="M{x1:.1f},{y:.1f} L{x2:.1f},{y:.1f}" stroke="#ddd"/>')
        parts.append(words(x1 - 6, y + 4, f"{steps:,.0f}", "end"))
    for actors in (1, 8, 64, 256, 1000):
        x, _ = place(actors, LOW)
        parts.append(words(x, HEIGHT - BOTTOM + 18, f"{actors:,}"))
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(words(middle, HEIGHT - 8, "actors, one core each"))
    parts.append(words(middle, 20, "Pong, steps/s with one learner on an H200: a projection"))
    return parts


def draw() -> str:
    parts = axes()
    for model in models():
        color = COLORS[model.algo]
        sizes = [math.exp(math.log(SIZES[-1]) * i / 100) for i in range(101)]
        points = [
            place(n, min(n * model.actor_steps, replace(model, actors=math.ceil(n)).steps))
            for n in sizes
        ]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>')
        x, y = points[-1]
        parts.append(words(x + 6, y + 4, model.algo, "start", color))
        limit = replace(model, actors=SIZES[-1])
        parts.append(words(x + 6, y + 18, f"limit: {limit.bottleneck}", "start", color))
    model = models()[0]
    ends = [place(n, n * model.actor_steps) for n in (1, SIZES[-1])]
    parts.append(
        f'<path d="M{ends[0][0]:.1f},{ends[0][1]:.1f} L{ends[1][0]:.1f},{ends[1][1]:.1f}" '
        'stroke="#888" stroke-dasharray="4 4" fill="none"/>'
    )
    parts.append(words(ends[1][0] + 6, ends[1][1] + 4, "enough learners", "start", "#888"))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            f'width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
            *parts,
            "</svg>\n",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write docs/scaling.md and the plot")
    parser.add_argument("--actors", type=int, help="one size instead of the tables")
    parser.add_argument("--learners", type=int, default=1)
    parser.add_argument("--network", type=float, default=25.0, help="gigabits/s of the learner")
    parser.add_argument("--actor-steps", type=float, help="steps/s of one of your actors")
    parser.add_argument("--updates", type=float, help="updates/s of your learner alone")
    given = parser.parse_args()
    if given.write:
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        IMAGE.write_text(draw(), encoding="utf-8")
        return 0
    if given.actors is None:
        print(check_table(), tables(), sep="\n\n")
        return 0
    for model in models():
        mine = replace(
            model,
            actors=given.actors,
            learners=given.learners,
            network=given.network,
            actor_steps=given.actor_steps or model.actor_steps,
            updates=given.updates or model.updates,
        )
        print(
            f"{mine.algo}: {mine.steps:,.0f} steps/s, {mine.updates_made:,.1f} updates/s of each "
            f"learner, rows {mine.row_rate / 1e6:,.0f} MB/s, weights {mine.weight_rate / 1e6:,.0f} "
            f"MB/s with actor.publish_every={mine.publish_every}; limit: {mine.bottleneck}, actors "
            f"busy {mine.busy:.0%}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
