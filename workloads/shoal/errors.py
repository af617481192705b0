"""The ways in which a command ends badly; `main.py` turns them into one line a mistake and an exit code (DESIGN section 8)."""

EXIT_DONE = 0
EXIT_RUN_FAILED = 1
EXIT_INPUT_WRONG = 2
EXIT_INTERRUPTED = 130
"""Stopped by Ctrl-C or SIGTERM, as shells say it (128 + SIGINT): neither done nor failed, and can be resumed."""


class InputWrong(Exception):
    """The user's input cannot be used: one line for each mistake, each saying what is allowed. Exit code 2."""

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


class MayPass(ValueError):
    """Something needed is wrong or not available. `passing`: a machine, a network or a service is at fault, and another try may succeed."""

    def __init__(self, text: str, *, passing: bool = False) -> None:
        super().__init__(text)
        self.passing = passing


class RunFailed(Exception):
    """The run, not the input, went wrong. Exit code 1."""
