"""What a run says about itself when it begins."""

from types import SimpleNamespace

import ludus
from ludus.run.loop import Every
from ludus.run.recording.messages import shown_facts, start_messages, with_rules


def loop(step, steps, facts, every=None):
    return SimpleNamespace(
        step=step, steps=steps, compute_info=facts, checkpoint_every=Every(every)
    )


def test_an_atari_run_names_its_rules_and_how_it_computes(tmp_path):
    cfg = ludus.config("dqn", "pong", protocol="dopamine", sticky=0, **{"env.num": 4})
    facts = {"device": "cpu", "precision": "bf16", "order": "", "why_precision": "1.9x",
             "overlap": False}  # fmt: skip
    first, rules, compute, saved = start_messages(cfg, tmp_path, loop(0, 3000, facts, 10_000))
    assert first == f"dqn on ALE/Pong-v5, seed 1, step 0 -> 3k, in {tmp_path}"
    assert rules.startswith("protocol dopamine* (") and rules.endswith("4 environments, 12k frames")
    assert compute == "compute device cpu, precision bf16 (1.9x), overlap false"
    assert saved.startswith("checkpoints every 10k steps")


def test_without_rules_there_is_no_line_of_them(tmp_path):
    assert len(start_messages(ludus.config("dqn", "CartPole-v1"), tmp_path, loop(5, 10, {}))) == 1
    assert shown_facts({}) == ""


def test_a_score_is_reported_with_its_rules():
    rules = {"protocol": "saber", "protocol_hash": "abc"}
    assert with_rules("5.5", rules) == "5.5, protocol saber (abc)"
    assert with_rules("5.5", {}) == "5.5"
