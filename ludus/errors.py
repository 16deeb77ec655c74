"""Errors for users: a code, what happened, where, the likely cause, and the fix to type."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable

OK, USER_ERROR, BAD_CONFIG, RUN_FAILED, OUT_OF_MEMORY = 0, 1, 2, 3, 4
SIGINT_EXIT, SIGTERM_EXIT = 130, 143

# Every code, with the first sentence of `ludus help CODE`. A test keeps this table complete.
CODES: dict[str, str] = {
    "E101": "A configuration key does not exist.",
    "E102": "A configuration value has the wrong type.",
    "E103": "A configuration value is out of range or not one of the choices.",
    "E104": "Two settings contradict each other, or an option does not apply here.",
    "E105": "A configuration file cannot be read.",
    "E106": "The name of an algorithm is not registered.",
    "E107": "The name of a preset is not known, or does not fit.",
    "E108": "A shorthand key names more than one setting.",
    "E109": "A module named by --import or by an entry point cannot be used.",
    "E110": "A secret of the run has to be given again.",
    "E111": "A file refers to code, or contains a path, that you have not allowed.",
    "E201": "An environment cannot be found or made.",
    "E202": "An environment breaks the gymnasium contract.",
    "E203": "An observation does not fit the network or its own space.",
    "E204": "An algorithm does not support the environment's actions or observations.",
    "E205": "An environment raised an exception or its worker process died.",
    "E206": "An actor failed, or actors failed too often.",
    "E208": "A replay role failed, or replay roles failed too often.",
    "E301": "The run directory cannot be written.",
    "E302": "Another process is using the run directory.",
    "E303": "A run or run directory was not found.",
    "E304": "A checkpoint was not found.",
    "E305": "A checkpoint is damaged.",
    "E306": "A checkpoint does not fit the configuration.",
    "E307": "A resumed run may not change this setting.",
    "E310": "Replay or networks need more memory than is free.",
    "E311": "The accelerator is out of memory.",
    "E401": "The loss or a gradient was not finite three times in a row.",
    "E402": "A callback raised an exception.",
    "E403": "One of several learners failed, or their weights were not equal any more.",
    "E501": "An optional package is missing, or its version does not fit.",
    "E502": "Ray cannot be started, or its cluster cannot be joined.",
}


def env_faults() -> tuple[type[BaseException], ...]:
    """Exceptions that environment code may raise, for `except env_faults()`: all, including
    SystemExit and panics of compiled simulators, but not KeyboardInterrupt."""
    return () if isinstance(sys.exception(), KeyboardInterrupt) else (BaseException,)


# Control characters except tab and newline, and marks that change the text direction.
_UNPRINTABLE = (
    (0, 8), (0x0B, 0x1F), (0x7F, 0x9F), (0x200B, 0x200F), (0x2028, 0x202E), (0x2060, 0x206F),
    (0xFEFF, 0xFEFF), (0xD800, 0xDFFF),
)  # fmt: skip
_SHOWN = {
    code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
    for first, last in _UNPRINTABLE
    for code in range(first, last + 1)
}


def printable(text: str) -> str:
    """Escape control characters (as \\x1b) in text from a file or a name, for a terminal."""
    return text.translate(_SHOWN)


LINE, LINES = 1_000, 40  # the longest line of an error, and the most lines of one part


def bounded(text: str) -> str:
    """Shorten long lines and long texts, so that a value from a file cannot flood the screen."""
    lines = text.split("\n", LINES)
    if len(lines) > LINES:
        lines[-1] = f"... and {lines[-1].count(chr(10)) + 1} more lines"
    return "\n".join(
        line if len(line) <= LINE else f"{line[: LINE - 200]} ... {line[-150:]}" for line in lines
    )


class LudusError(ValueError):
    """An error that a user can act on, printed without a traceback."""

    def __init__(
        self,
        code: str,
        what: str,
        *,
        where: str = "",
        why: str = "",
        fix: str = "",
        exit_code: int | None = None,
    ) -> None:
        assert code in CODES, f"{code} is missing from the table of codes"
        self.code = code
        self.what, self.where, self.why, self.fix = map(bounded, (what, where, why, fix))
        if exit_code is None:
            exit_code = BAD_CONFIG if code.startswith("E1") else USER_ERROR
            if code in ("E310", "E311"):
                exit_code = OUT_OF_MEMORY
            elif code.startswith("E4") or code in ("E205", "E206", "E208"):
                exit_code = RUN_FAILED
        self.exit_code = exit_code
        super().__init__(self.render())

    def render(self) -> str:
        parts = (("where", self.where), ("likely", self.why), ("fix", self.fix))
        lines = [f"  {name}: {text}" for name, text in parts if text]
        return printable("\n".join([f"error[{self.code}] {self.what}", *lines]))

    def __reduce__(self) -> tuple[object, ...]:
        """Support pickling, which by default loses keyword arguments of exceptions."""
        return _rebuild, (self.code, self.what, self.where, self.why, self.fix, self.exit_code)


class ActorError(Exception):
    """The traceback text of another process, as the cause of an error raised here."""

    def __str__(self) -> str:
        return "\n" + str(self.args[0])


def _rebuild(code: str, what: str, where: str, why: str, fix: str, exit_code: int) -> LudusError:
    return LudusError(code, what, where=where, why=why, fix=fix, exit_code=exit_code)


def install_extra(extra: str) -> str:
    """The command that installs an optional package. PyPI has another project named ludus."""
    return f"pip install '.[{extra}]'  in a clone of Ludus"


def nearest(word: str, choices: Iterable[str]) -> str:
    """Return ' (did you mean X ?)', or nothing if no choice is similar."""
    hit = difflib.get_close_matches(word[:LINE], list(choices), n=1, cutoff=0.5)
    return f" (did you mean  {hit[0]} ?)" if hit else ""
