"""The acceptance trace itself: 150 lines, marks counted rightly, failures never proven."""

from __future__ import annotations

import subprocess
import sys


def test_all_lines_are_there(root):
    sys.path.insert(0, str(root / "tools"))
    try:
        import accept
    finally:
        sys.path.pop(0)
    texts = accept.texts()
    assert sorted(texts) == list(range(1, 151))
    assert len(set(texts.values())) == 150 and all(len(t) > 10 for t in texts.values())


def test_only_lines_whose_tests_all_pass_are_proven(root, tmp_path):
    (tmp_path / "conftest.py").write_text((root / "tests" / "conftest.py").read_text())
    (tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "@pytest.mark.accept(7)\ndef test_good(): pass\n"
        "@pytest.mark.accept(8)\n@pytest.mark.accept(9)\ndef test_both(): pass\n"
        "@pytest.mark.accept(8)\ndef test_bad(): assert False\n"
        "@pytest.mark.accept(10)\ndef test_skipped(): pytest.skip('no')\n"
        "@pytest.mark.accept(11)\n@pytest.mark.slow\ndef test_slow(): pass\n"
    )
    tool = [
        sys.executable,
        str(root / "tools" / "accept.py"),
        "--keep",
        "--jobs",
        "0",
        str(tmp_path),
    ]
    done = subprocess.run(tool, capture_output=True, text=True, cwd=root)
    assert "proven: 3 of 150: 7, 9, 11" in done.stdout, done.stdout + done.stderr
    assert "<- its test failed" in done.stdout and done.returncode == 1
