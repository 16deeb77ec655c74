"""Files that several threads of one process write as a whole."""

from __future__ import annotations

import os
import threading

from ludus.track.atomic_files import write_atomic


def test_two_threads_may_write_the_same_file(tmp_path, monkeypatch) -> None:
    """The watchdog and the main thread both write status.json."""
    path, real = tmp_path / "status.json", os.replace
    waiting, first_done, failed = threading.Event(), threading.Event(), []

    def write_second() -> None:
        try:
            write_atomic(path, b"second")
        except OSError as error:
            failed.append(error)

    second = threading.Thread(target=write_second)

    def replace(source, target) -> None:
        if threading.current_thread() is second:
            waiting.set()
            assert first_done.wait(60)
            real(source, target)
        else:
            real(source, target)
            second.start()
            assert waiting.wait(60)  # the second has written its temporary file

    monkeypatch.setattr(os, "replace", replace)
    write_atomic(path, b"first")
    first_done.set()
    second.join(60)
    assert not failed and path.read_bytes() == b"second"
    assert list(tmp_path.iterdir()) == [path]
