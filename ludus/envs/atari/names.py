"""The names of Atari games, without loading an emulator.

`pong`, `Pong`, `PongNoFrameskip-v4` and `ALE/Pong-v5` are one game; so are `ms_pacman`, `ms pacman`
and `mspacman-v5`. The other old ids (`Pong-v0`,
`Pong-v4`, `PongNoFrameskip-v0`) have their own frame skip and stickiness: gymnasium makes
them.
"""

from __future__ import annotations

import importlib.util
import re

# Every single-player ROM of ale-py 0.12, by file name.
GAMES = tuple(
    """adventure air_raid alien amidar assault asterix asteroids atlantis atlantis2 backgammon
    bank_heist basic_math battle_zone beam_rider berzerk blackjack bowling boxing breakout carnival
    casino centipede chopper_command crazy_climber crossbow darkchambers defender demon_attack
    donkey_kong double_dunk earthworld elevator_action enduro entombed et fishing_derby flag_capture
    freeway frogger frostbite galaxian gopher gravitar hangman haunted_house hero human_cannonball
    ice_hockey jamesbond journey_escape kaboom kangaroo keystone_kapers king_kong klax koolaid krull
    kung_fu_master laser_gates lost_luggage mario_bros miniature_golf montezuma_revenge mr_do
    ms_pacman name_this_game othello pacman phoenix pitfall pitfall2 pong pooyan private_eye qbert
    riverraid road_runner robotank seaquest sir_lancelot skiing solaris space_invaders space_war
    star_gunner superman surround tennis tetris tic_tac_toe_3d time_pilot trondead turmoil tutankham
    up_n_down venture video_checkers video_chess video_cube video_pinball wizard_of_wor word_zapper
    yars_revenge zaxxon""".split()
)

# ROMs without a single-player mode.
_SHARED = {"combat", "joust", "mazecraze", "warlords"}
SHARED = "that game is for two or more players, and here one plays alone"

_FORMS = re.compile(
    r"(?:ALE/(?P<ale>\w+)-v5|(?P<old>\w+)NoFrameskip-v4|(?P<short>[\w -]+?)(?:-v5)?)"
)
_OLD = re.compile(r"(?P<name>[A-Za-z0-9]+?)(?:NoFrameskip)?-v[04]")

_GONE = re.compile(r"(?:ALE/)?(?P<name>[A-Za-z0-9]+?)(?:Deterministic|NoFrameskip|-ram)*-v\d+")


def _squeeze(name: str) -> str:
    return re.sub(r"[_ -]", "", name).lower()


_BY_NAME = {_squeeze(game): game for game in GAMES}


def game_of(id: object) -> str | None:
    """The ROM behind an id in any of its spellings; None if it is not a game."""
    hit = _FORMS.fullmatch(id) if isinstance(id, str) else None
    name = hit and (hit["ale"] or hit["old"] or hit["short"])
    return _BY_NAME.get(_squeeze(name)) if name else None


def needs_others(id: str) -> bool:
    """Whether an id, in any spelling, is a game for several players only."""
    hits = [hit for form in (_FORMS, _OLD) if (hit := form.fullmatch(id)) is not None]
    return any(_squeeze(next(filter(None, hit.groups()))) in _SHARED for hit in hits)


def ale_id(game: str) -> str:
    """pong -> ALE/Pong-v5, as ale-py registers it."""
    return f"ALE/{game.title().replace('_', '')}-v5"


def canonical(id: str) -> str:
    """The spelling that runs, results and presets use; other ids unchanged."""
    game = game_of(id)
    return id if game is None else ale_id(game)


def old_game(id: str) -> str | None:
    """The game of Pong-v0, Pong-v4 and the like, which have their own skip and stickiness."""
    hit = _OLD.fullmatch(id)
    return _BY_NAME.get(_squeeze(hit["name"])) if hit is not None and game_of(id) is None else None


def meant_game(id: str) -> str | None:
    """The game of an old id that is no longer registered."""
    hit = _GONE.fullmatch(id)
    return _BY_NAME.get(_squeeze(hit["name"])) if hit is not None else None


def looks_like_atari(id: str) -> bool:
    """Whether an id, known or misspelt, can only be an Atari game."""
    known = game_of(id) or old_game(id)
    return known is not None or id.startswith("ALE/") or "NoFrameskip" in id


def emulator_installed() -> bool:
    return importlib.util.find_spec("ale_py") is not None
