"""Presets that start from another preset, and what is refused about them."""

from __future__ import annotations

import pytest

from ludus import presets, registry
from ludus.errors import LudusError


def entry_with(tmp_path, text: str) -> registry.Entry:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    dqn = registry.find("dqn")
    return registry.Entry("mine", dqn.module, dqn.config, "", presets=str(path))


def test_a_base_is_laid_under_the_differences() -> None:
    (double,) = [
        p for p in presets.presets_of(registry.find("double-dqn")) if p.fits("CartPole-v1")
    ]
    (small,) = [p for p in presets.presets_of(registry.find("dqn")) if p.name == "small"]
    assert double.config["algo"] == {**small.config["algo"], "double": True}
    assert small.source.strip() in double.source
    assert not double.source.startswith(small.source[:20])  # its own words come first


def test_a_base_of_another_kind_drops_nothing_it_should_keep() -> None:
    (c51,) = [p for p in presets.presets_of(registry.find("c51")) if p.fits("CartPole-v1")]
    assert c51.config["algo"]["head"]["v_max"] == 10
    (small,) = [p for p in presets.presets_of(registry.find("dqn")) if p.name == "small"]
    assert c51.config["algo"]["lr"] == small.config["algo"]["lr"]


@pytest.mark.parametrize("base", ["dqn/nothing", "nothing"])
def test_a_missing_base_is_named(tmp_path, base) -> None:
    row = f"presets: [{{name: a, base: {base}, match: [], source: x, config: {{}}}}]"
    with pytest.raises(LudusError) as caught:
        presets.presets_of(entry_with(tmp_path, row))
    assert base.split("/")[-1] in caught.value.what


def test_presets_that_start_from_each_other_are_refused(tmp_path) -> None:
    rows = "presets:\n" + "".join(
        f"  - {{name: {a}, base: mine/{b}, match: [], source: x, config: {{}}}}\n"
        for a, b in (("a", "b"), ("b", "a"))
    )
    entry = entry_with(tmp_path, rows)
    registry.register(entry)
    try:
        with pytest.raises(LudusError, match="start from each other"):
            presets.presets_of(entry)
    finally:
        registry._TABLE.pop("mine")
