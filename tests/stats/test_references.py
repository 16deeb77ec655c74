"""Published scores: what is shipped is what the sources say, and protocols are kept apart."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tomllib
from importlib import resources
from pathlib import Path

import pytest

from ludus.envs.atari.names import GAMES
from ludus.envs.atari.protocols import PROTOCOLS
from ludus.stats.references import (
    HUMAN,
    RANDOM,
    RECORD,
    _agents,
    _scores,
    game_of,
    human_normalized,
    kind_of,
    record_normalized,
    reference_curves,
    references,
)
from ludus.stats.warnings import protocol_warnings, reference_warnings

ROOT = Path(__file__).parents[2]
SPELLINGS = [
    "pong", "Pong", "PongNoFrameskip-v4", "ALE/Pong-v5", "Pong-v4", "Pong-v0", "PongNoFrameskip-v0",
]  # fmt: skip


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_of_a_game(spelling):
    assert game_of(spelling) == "pong"
    assert human_normalized(spelling, 14.6) == 1 and record_normalized(spelling, 21) == 1
    assert references(spelling) == references("pong") != []
    assert reference_curves(spelling, "sticky") == reference_curves("pong", "sticky") != []


@pytest.mark.parametrize("other", ["CartPole-v1", "ludus/Identity-v0", "my.module:Pong", ""])
def test_what_is_no_game_has_no_references(other):
    assert game_of(other) is None and references(other) == [] and reference_curves(other) == []
    assert human_normalized(other, 1.0) is None and record_normalized(other, 1.0) is None


def test_games_are_those_the_emulator_knows():
    assert len(_scores()) == 63 and set(_scores()) <= set(GAMES)
    assert sum("human" in row for row in _scores().values()) == 57
    assert all(keys <= set(_agents()) for keys in map(set, _scores().values()))


@pytest.mark.parametrize(
    ("agent", "published"),
    [
        ("DQN", 79), ("Double DQN", 118), ("Dueling DDQN", 151), ("Prioritized Dueling DDQN", 172),
        ("C51", 178), ("QR-DQN-0", 199), ("QR-DQN-1", 211), ("Ape-X DQN", 434), ("Agent57", 1933),
        ("IMPALA (shallow)", 93), ("IMPALA (deep)", 192),
    ],
)  # fmt: skip
def test_medians_are_the_published_ones(agent, published):
    """In % of the human tester, over the games of each paper; a wrong cell would move them."""
    shares = [
        human_normalized(game, row.score)
        for game in _scores()
        for row in references(game)
        if row.agent == agent
    ]
    found = [share for share in shares if share is not None]
    assert len(found) >= 49
    assert 100 * statistics.median(found) == pytest.approx(published, abs=0.7)


def test_rows_say_how_and_where_they_were_measured():
    rows = {row.agent: row for row in references("breakout")}
    assert [r.agent for r in references("breakout")][:3] == [RANDOM, HUMAN, RECORD]
    assert rows["Rainbow"].protocol == "no-op" and "Hessel" in rows["Rainbow"].source
    assert rows["A3C-LSTM"].protocol == "human starts"
    assert rows["Dopamine IQN (JAX, CNN)"].protocol == "sticky"
    assert rows["PPO"].protocol == "not stated" and rows["PPO"].score == 274.8
    assert all(row.source for game in _scores() for row in references(game))


def test_normalised_scores():
    assert human_normalized("breakout", 1.7) == 0
    assert human_normalized("breakout", 30.5) == pytest.approx(1)
    assert record_normalized("breakout", 864) == 1
    assert record_normalized("surround", 5) is None, "its record is not known"
    assert human_normalized("surround", 5) is not None
    assert human_normalized("air_raid", 5) is None and references("air_raid") != []


def test_kinds_of_our_protocols_follow_their_flags():
    for name, protocol in PROTOCOLS.items():
        assert kind_of(name) == ("sticky" if protocol.flags.sticky else "no-op")
        assert bool(protocol.flags.noops) == (kind_of(name) == "no-op")
    assert kind_of("sticky") == "sticky" and kind_of(None) is None and kind_of("saber*") is None


def test_curves_are_of_the_game_and_the_protocol():
    sticky = reference_curves("pong", "saber")
    assert len(sticky) == 10 and all(c.note.startswith("sticky") for c in sticky)
    rainbow = next(c for c in sticky if c.agent == "Dopamine Rainbow (JAX, CNN)")
    frames = [p.frames for p in rainbow.points]
    assert frames == sorted(frames) and frames[0] == 10**6 and frames[-1] == 2 * 10**8
    assert rainbow.points[-1].mean > 15 and rainbow.points[0].std >= 0
    assert reference_curves("pong", "dqn-2015") == [] == reference_curves("pong", "saber*")
    others = [c.agent for c in reference_curves("pong", "not stated")]
    assert others == ["PPO (DreamerV3 repository)"]
    assert len(reference_curves("pong")) == 11


def test_mixed_protocols_are_reported():
    assert protocol_warnings([("a", "saber", "1"), ("b", "saber", "1")]) == []
    assert protocol_warnings([("a", None, None), ("b", None, None)]) == []
    rows = [
        (name, label, None) for name, label in zip("abc", ("saber", "r2d2", "saber"), strict=True)
    ]
    (mixed,) = protocol_warnings([*rows, ("d", None, None)])
    assert "mixed" in mixed and "saber (a, c)" in mixed and "r2d2 (b)" in mixed
    rules, star = protocol_warnings([("a", "saber*", "11"), ("b", "saber*", "22")])
    assert "different rules" in rules and "11 (a)" in rules and "22 (b)" in rules
    assert "saber with rules changed (a, b)" in star
    (many,) = protocol_warnings([*((f"r{i}", "saber", "") for i in range(9)), ("x", "r2d2", "")])
    assert "r0, r1, r2 and 6 more" in many


def test_runs_of_one_name_do_not_hide_each_other():
    """Two benches name their cells alike."""
    (mixed,) = protocol_warnings([("a", "saber", "1"), ("a", "r2d2", "2")])
    assert "saber (a); r2d2 (a)" in mixed
    (rules,) = protocol_warnings([("a", "saber", "1"), ("a", "saber", "2")])
    assert "1 (a); 2 (a)" in rules


def test_references_of_another_protocol_are_reported():
    shown = [r for r in references("pong") if r.agent in ("Rainbow", HUMAN, RECORD)]
    assert reference_warnings("dqn-2015", shown) == [] == reference_warnings(None, shown)
    odd, scale = reference_warnings("saber", shown)
    assert "saber" in odd and "no-op (Rainbow)" in odd and HUMAN not in odd
    assert "saber" in scale and "no-op (human)" in scale and RECORD not in scale
    assert len(reference_warnings("saber*", shown)) == 2, "nobody knows which rules were changed"


def test_names_and_scores_are_known_without_torch():
    code = (
        "import sys\nfrom ludus.stats.references import references\n"
        "assert references('ALE/Pong-v5')\n"
        "assert not {'torch', 'gymnasium', 'ale_py'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_data_are_in_the_package():
    """The wheel takes the whole package, data too, so long as nothing is excluded."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert wheel["targets"]["wheel"] == {"packages": ["ludus"]}
    here = {item.name for item in (resources.files("ludus.stats") / "data").iterdir()}
    assert here == {"PROVENANCE.txt", "atari_agents.csv", "atari_curves.csv", "atari_scores.csv"}
    text = (resources.files("ludus.stats") / "data" / "PROVENANCE.txt").read_text()
    assert all(kind in text for kind in {agent["protocol"] for agent in _agents().values()})
