"""What evaluations leave in eval/ stays there."""

from __future__ import annotations

from ludus.evals.result import EvalResult, write_result


def test_another_seed_or_number_of_episodes_replaces_nothing(tmp_path):
    """A quick look must not cost the evaluation that took an hour."""

    def kept(seed, count):
        result = EvalResult([1.0] * count, [1] * count, [0] * count, 9, settings={"seed": seed})
        return write_result(result, tmp_path)

    whole = kept(1, 100)
    before = whole.read_bytes()
    assert kept(1, 3) != whole != kept(7, 100) and whole.read_bytes() == before
    assert kept(1, 100) == whole and kept(1, 3) == kept(1, 3)
    assert len(list(tmp_path.glob("greedy-*.json"))) == len(list(tmp_path.glob("*.csv"))) == 3
