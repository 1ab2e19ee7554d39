"""The command line: finds the command, and turns errors into the exit codes of the contract."""

from __future__ import annotations

import atexit
import codecs
import contextlib
import difflib
import errno
import gc
import importlib
import io
import re
import sys
from typing import NoReturn, TextIO

import click

from nccl_forensics import __version__
from nccl_forensics.commands import COMMANDS, EXAMPLES, MODULES
from nccl_forensics.errors import ForensicsError, OutputError
from nccl_forensics.outlets import outlive_readers

#: What a full disk, a quota, a limit on files or a read-only file system says.
_OS_ERROR = re.compile(r"\(os error ([0-9]{1,4})\)")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
#: Importing makes many objects and no garbage: looked for as seldom as this, it costs a tenth of the start less.
GARBAGE = (200_000, 20, 20)
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class Commands(click.Group):
    """Loads a command's module when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"nccl_forensics.commands.{MODULES.get(cmd_name, cmd_name)}")
        command: click.Command = getattr(module, cmd_name)
        if examples := EXAMPLES.get(cmd_name):
            command.epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in examples)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as problem:
            near = difflib.get_close_matches(args[0], list(COMMANDS), n=1)
            raise click.UsageError(problem.message + (f" Did you mean {near[0]!r}?" if near else ""), ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=Commands, context_settings=CONTEXT)
@click.version_option(__version__, prog_name="nccl-forensics")
def cli() -> None:
    """Say which rank, host and collective broke a distributed training job, with proof.

    Hand it whatever was gathered: nccl-forensics analyze incident.tar.gz -o out

    \b
    Completion of commands, options and names, for this shell (bash, zsh, fish):
      eval "$(_NCCL_FORENSICS_COMPLETE=bash_source nccl-forensics)"
    """


#: What stands for our own signs where a terminal or a pipe cannot show them (Windows' code pages, Latin locales); the rest becomes "?".
_SIGNS = {"─": "-", "━": "=", "–": "-", "·": "|", "…": "...", "→": "->", "▲": "^", "▼": "v", "✗": "x", "✓": "+", "×": "x", "±": "+-"}


def _plain(problem: UnicodeError) -> tuple[str, int]:
    if not isinstance(problem, UnicodeEncodeError):
        raise problem
    return "".join(_SIGNS.get(c, "?") for c in problem.object[problem.start : problem.end]), problem.end


def _write_what_it_can(stream: TextIO) -> None:
    """Let a stream whose encoding knows fewer characters than UTF-8 write others in their place instead of failing."""
    if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
        codecs.register_error("nccl-forensics", _plain)
        stream.reconfigure(errors="nccl-forensics")


def _leave() -> None:
    """An interpreter that ends looks through all that it holds for garbage: a tenth of a small analysis, and of no use to anybody.

    DuckDB's bindings complain on standard error about what was not looked through.
    """
    if "duckdb" not in sys.modules:
        gc.freeze()


def main() -> None:
    """Run the command line with the exit codes of the contract."""
    import signal

    gc.set_threshold(*GARBAGE)
    atexit.register(_leave)

    def stop(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, stop)
    outlive_readers()
    for stream in (sys.stdout, sys.stderr):
        _write_what_it_can(stream)
    try:
        cli.main(standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as left:
        sys.exit(left.exit_code)
    except click.Abort:
        click.echo("interrupted", err=True)
        sys.exit(130)
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        sys.exit(130)
    except click.ClickException as problem:
        problem.show()
        sys.exit(2)
    except ForensicsError as problem:
        click.echo(f"nccl-forensics: {problem}", err=True)
        sys.exit(problem.exit_code)
    except OSError as problem:
        told = _OS_ERROR.search(str(problem))  # Polars says the number in words only
        if (problem.errno or (int(told[1]) if told else 0)) not in _NO_ROOM:
            _defect(problem)
        click.echo(f"nccl-forensics: output or scratch cannot be written: {problem.strerror or problem}", err=True)
        with contextlib.suppress(OSError):
            sys.stdout.close()  # what is still in it would fail again at exit
        sys.exit(OutputError.exit_code)
    except SystemExit:
        raise
    except BaseException as problem:  # a panic of Polars is no Exception
        _defect(problem)


def _defect(problem: BaseException) -> NoReturn:
    """End as the contract says of a defect: Python's own 1 would be `check`'s word for a fault in the evidence."""
    import traceback

    traceback.print_exception(problem)
    click.echo("nccl-forensics: a defect of the program; what stands above is what a report of it needs", err=True)
    sys.exit(ForensicsError.exit_code)


if __name__ == "__main__":
    main()
