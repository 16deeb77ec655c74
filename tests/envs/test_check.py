"""`ludus check`: each mistake of a user is found and said in words, and good ones pass."""

import pytest

from ludus.envs.check import check_env
from ludus.envs.config import EnvConfig

GOOD = """
import gymnasium as gym, numpy as np
class Mine(gym.Env):
    metadata = {"render_modes": ["rgb_array"]}
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.obs(), {}
    def obs(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)
    def step(self, action):
        self.t += 1
        return self.obs(), 1.0, self.t >= 9, False, {}
"""

# what is changed in the good one -> level and words of the finding
MISTAKES = [
    ("return self.obs(), {}\n    def obs", "return self.obs()\n    def obs", "error", "two values"),
    ("*, seed=None, options=None", "*, options=None", "error", "seed"),
    ("self.np_random.uniform", "np.random.uniform", "error", "no run can be repeated"),
    (".astype(np.float32)", "[:1]", "error", "got shape (1,)"),
    (".astype(np.float32)", "", "warning", "float64 where observation_space says float32"),
    (".astype(np.float32)", ".astype(np.float32) * 9", "warning", "outside observation_space"),
    (".astype(np.float32)", ".astype(np.float32) + np.float32(np.nan)", "error", "NaN or infinity"),
    ("self.obs(), 1.0,", "self.obs(), 'one',", "error", "not a number"),
    ("self.obs(), 1.0,", "self.obs(), float('inf'),", "error", "reward is inf"),
    ("self.t >= 9, False, {}", "self.t >= 9, {}", "error", "4 values, expected five"),
    ("self.t >= 9, False, {}", "self.t >= 9, False, None", "error", "info is a NoneType"),
    ("self.t >= 9, False, {}", "int(self.t >= 9), False, {}", "warning", "terminated is a int"),
    ("self.t >= 9, False, {}", "False, False, {}", "warning", "no episode ended"),
    ("self.t += 1", "self.t += None", "error", "its own code failed: TypeError"),
    ('["rgb_array"]', "[]", "warning", "cannot be filmed"),
    ("    action_space", "    # action_space", "error", "action_space is missing"),
    ("spaces.Discrete(2)", "spaces.Box(0, 2, (1,))", "warning", "not symmetric"),
    ("spaces.Discrete(2)", "spaces.Text(4)", "error", "actions of type Text"),
    ("self.t += 1", "self.t += 1; import time; time.sleep(0.002)", "warning", "steps per second"),
]


def test_a_good_environment_has_nothing_but_good_findings(module_of):
    findings = check_env(f"{module_of(GOOD)}:Mine")
    assert {f.level for f in findings} == {"ok"}
    said = " ".join(f.text for f in findings)
    assert "same seed gives the same episode" in said and "steps per second" in said


@pytest.mark.parametrize(("old", "new", "level", "says"), MISTAKES)
def test_each_mistake_is_found(module_of, old, new, level, says):
    assert old in GOOD
    findings = check_env(f"{module_of(GOOD.replace(old, new))}:Mine", steps=40, seconds=3)
    hits = [f for f in findings if says in f.text]
    assert hits and hits[0].level == level and hits[0].fix, findings
    assert findings[0].level == level  # the worst comes first


@pytest.mark.parametrize(
    "id",
    [
        "CartPole-v1",
        "LunarLander-v2",
        "Pendulum-v1",
        "ludus/IdentityDict-v0",
        "ludus/MaskedBandit-v0",
    ],
)
def test_known_environments_have_no_errors(id):
    findings = check_env(id, steps=100)
    assert findings and not [f for f in findings if f.level == "error"]


def test_what_cannot_be_made_is_a_finding_not_an_exception():
    assert check_env("CartPol-v1")[0].level == "error"
    assert "did you mean" in check_env("CartPol-v1")[0].text
    broken = EnvConfig(id="ludus/Faulty-v0", args={"fault": "shape"})
    assert check_env(broken)[0].level == "error"

    def fails():
        raise RuntimeError("no screen")

    assert "no screen" in check_env(fails)[0].text
