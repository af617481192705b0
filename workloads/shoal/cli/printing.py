"""One line of a verb: of its answer on standard output, or beside it on standard error."""

import os
import sys

import typer

from shoal.errors import EXIT_DONE


def print_line(text: str) -> None:
    """Write a line to standard output. A reader that has left (`| head`) ends the program with exit code 0."""
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the flush at exit would fail again
        raise typer.Exit(EXIT_DONE) from None


def print_note(text: str) -> None:
    """Write a line to standard error, where it does not mix with the answer."""
    sys.stderr.write(text + "\n")
