"""The `ludus` command: its verbs, and the handling of errors."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

import typer

from ludus.cli import bench, evaluating, info, play, runs, training
from ludus.cli.cluster import roles
from ludus.cli.compare import compare
from ludus.cli.doctor import doctor
from ludus.cli.output import no_color, print_error, say, set_typed, typed
from ludus.cli.report import report
from ludus.errors import (
    OUT_OF_MEMORY,
    RUN_FAILED,
    SIGINT_EXIT,
    USER_ERROR,
    ActorError,
    LudusError,
    bounded,
)
from ludus.secret_masking import learn_command, masked_command

app = typer.Typer(
    name="ludus",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: rich alone would take half the time --help may take
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Deep reinforcement learning: train, resume, evaluate.",
    epilog="All verbs: --debug (full tracebacks), --no-color. Settings are typed as key=value.",
)
app.command("train", context_settings={"ignore_unknown_options": False})(training.train)
app.command("resume")(training.resume)
app.command("learner")(roles.learner)
app.command("actor")(roles.actor)
app.command("evaluator")(roles.evaluator)
app.command("replay")(roles.replay)
app.command("head")(roles.head)
app.command("eval")(evaluating.evaluate)
app.command("play")(play.play)
app.command("record")(play.record)
app.command("report")(report)
app.command("ls")(runs.ls)
app.command("status")(runs.status)
app.command("logs")(runs.logs)
app.command("stop")(runs.stop)
app.command("compare")(compare)
app.command("list")(info.list_things)
app.command("show")(info.show)
app.command("check")(info.check)
app.command("doctor")(doctor)
app.command("help")(info.help_code)
app.add_typer(info.config_app, name="config")
app.add_typer(bench.app, name="bench")


def _version(asked: bool) -> None:
    if asked:
        from ludus import __version__

        say(f"ludus {__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", help="Print the version.", callback=_version, is_eager=True
    ),
) -> None:
    """Deep reinforcement learning: train, resume, evaluate."""


def main(argv: list[str] | None = None) -> None:
    """The console script. Ends the process with the exit codes of docs/errors.md."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments or bool(os.environ.get("LUDUS_DEBUG"))
    if "--no-color" in arguments:
        no_color()
    arguments = [a for a in arguments if a not in ("--debug", "--no-color")]
    sys.exit(run(arguments, debug))


def run(arguments: list[str], debug: bool = False) -> int:
    """Run one command and return its exit code."""
    if arguments in ([], ["config"]):  # a question, not a mistake
        arguments = [*arguments, "--help"]
    set_typed(arguments)
    learn_command(arguments)  # no message repeats its secrets
    try:
        code = app(args=arguments, prog_name="ludus", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except LudusError as error:
        _trace(debug)
        _print_remote_traceback(error)
        print_error(error.render() + f"\n  more: ludus help {error.code}")
        return error.exit_code
    except KeyboardInterrupt:
        print_error("interrupted")
        return SIGINT_EXIT
    except BrokenPipeError:  # `ludus ls | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MemoryError:
        _trace(debug)
        print_error("error[E310] out of memory\n  fix: a smaller algo.capacity or env.num")
        return OUT_OF_MEMORY
    except Exception as error:
        return _other(error, arguments[0], debug)


def _print_remote_traceback(error: LudusError) -> None:
    """Print the traceback of an error that an environment or actor raised in another process."""
    if isinstance(error.__cause__, ActorError):
        print_error(str(error.__cause__).strip("\n"), color=False)


def _other(error: Exception, verb: str, debug: bool) -> int:
    if hasattr(error, "format_message"):
        return _mistyped(error, verb, typed())
    if type(error).__name__ in ("Exit", "Abort"):
        return int(getattr(error, "exit_code", USER_ERROR))
    if type(error).__name__ == "OutOfMemoryError":
        print_error(f"error[E311] {error}\n  fix: a smaller algo.batch, or run.device=cpu")
        return OUT_OF_MEMORY
    _trace(debug)
    print_error(
        f"error {type(error).__name__}: {bounded(str(error))}\n"
        "  likely: a bug in ludus or in one of your packages\n"
        "  fix: the same command with --debug prints the traceback; it is in the run's "
        "log.txt too"
    )
    return RUN_FAILED


def _mistyped(error: Any, verb: str, words: list[str]) -> int:
    """Errors of typer: a wrong value of an option, a missing argument, an unknown option."""
    context = getattr(error, "ctx", None)
    page = f"{context.command_path if context is not None else f'ludus {verb}'} --help"
    kind = type(error).__name__
    if kind == "BadParameter" and error.param is not None:
        names = error.param.opts
        name = " / ".join(names) if names[0].startswith("-") else error.param.name.upper()
        says = _without_secrets(error.message, words).partition(", unable to parse")[0]
        says = says.replace("Input should be", "must be", 1).replace("Value error, ", "", 1)
        code = "E102" if "valid" in says else "E103"
        wrong = LudusError(code, f"{name} {says}", where="command line", fix=page)
        print_error(f"{wrong.render()}\n  more: ludus help {code}")
        return wrong.exit_code
    fix = f"settings are typed as key=value;  {page}" if kind == "NoSuchOption" else page
    said = bounded(_without_secrets(error.format_message(), words))
    print_error(f"error {said}\n  fix: {fix}")
    return USER_ERROR


def _without_secrets(text: str, words: list[str]) -> str:
    """A message that repeats words of the command."""
    for word, hidden in zip(words, masked_command(words), strict=True):
        text = text.replace(word, hidden) if word != hidden else text
    return text


def _trace(debug: bool) -> None:
    if debug:
        traceback.print_exc()


if __name__ == "__main__":
    main()
