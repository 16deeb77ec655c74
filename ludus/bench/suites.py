"""Named suites of `ludus bench`: their environments and the settings that their runs share."""

from __future__ import annotations

from dataclasses import dataclass

from ludus.errors import LudusError, nearest

# The 57 games that most published results are about, as the names of their ROMs.
ATARI_57 = tuple(
    """alien amidar assault asterix asteroids atlantis bank_heist battle_zone beam_rider berzerk
    bowling boxing breakout centipede chopper_command crazy_climber defender demon_attack
    double_dunk enduro fishing_derby freeway frostbite gopher gravitar hero ice_hockey jamesbond
    kangaroo krull kung_fu_master montezuma_revenge ms_pacman name_this_game phoenix pitfall pong
    private_eye qbert riverraid road_runner robotank seaquest skiing solaris space_invaders
    star_gunner surround tennis time_pilot tutankham up_n_down venture video_pinball wizard_of_wor
    yars_revenge zaxxon""".split()
)
# The subset whose scores predict the median of all 57 best (Aitchison et al. 2022).
ATARI_5 = ("battle_zone", "double_dunk", "name_this_game", "phoenix", "qbert")
CLASSIC = (
    "CartPole-v1", "Acrobot-v1", "MountainCar-v0", "Pendulum-v1", "MountainCarContinuous-v0",
    "LunarLander-v3", "LunarLanderContinuous-v3", "BipedalWalker-v3",
)  # fmt: skip
MUJOCO = (
    "HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5", "Swimmer-v5", "Humanoid-v5",
    "InvertedPendulum-v5", "InvertedDoublePendulum-v5",
)  # fmt: skip


@dataclass(frozen=True)
class Suite:
    name: str
    about: str
    envs: tuple[str, ...]
    algos: tuple[str, ...]  # default of --algos
    settings: tuple[str, ...] = ()  # typed settings override them
    tuned: bool = False  # only pairs that have a preset


SUITES = {
    suite.name: suite
    for suite in (
        Suite(
            "atari57-saber",
            "57 Atari games under SABER; scores are of training (Toromanoff et al. 2019)",
            ATARI_57,
            ("rainbow-iqn",),
            ("env.protocol=saber",),
        ),
        Suite(
            "atari-5",
            "five games that stand for the 57 (Aitchison et al. 2022)",
            ATARI_5,
            ("rainbow-iqn",),
        ),
        Suite(
            "classic",
            "classic control and Box2D with tuned presets, evaluated at the end",
            CLASSIC,
            ("dqn", "ppo"),
            ("eval.episodes=30",),
            tuned=True,
        ),
        Suite(
            "mujoco",
            "MuJoCo with tuned presets, a million steps each, evaluated at the end",
            MUJOCO,
            ("ppo", "sac", "td3"),
            ("run.steps=1M", "eval.episodes=20"),
            tuned=True,
        ),
    )
}


def find_suite(name: str) -> Suite:
    if name not in SUITES:
        raise LudusError(
            "E103",
            f"no suite {name!r}{nearest(name, SUITES)}",
            where="command line",
            why=f"there are: {', '.join(SUITES)}",
            fix="ludus bench --envs CartPole-v1,Acrobot-v1 --algos dqn,ppo",
        )
    return SUITES[name]
