"""A process that scores completions as lm-evaluation-harness does; it may hang, blow up or be killed, and nobody else is hurt.

Reads one JSON line a question, `[terms, completion]`, and writes one line: `["value", number]` or `["error", reason]`. A line that is a text names a
function that is to come, and is answered when it is loaded. Started by `judging`, never
imported. Before the first question it gives up files, sockets, processes and memory that it does not need.
"""

import json
import logging
import os
import signal
import sys
from collections.abc import Callable

from shoal.rewards.harness.scoring import LEFT_OUT, NotScored, answer_of, named_function, value
from shoal.rewards.judging import lock_in


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    sys.modules.update(dict.fromkeys(LEFT_OUT))  # type: ignore[arg-type] # None: as if they were not installed
    os.dup2(2, 1)  # what libraries print is not an answer
    logging.disable(logging.CRITICAL)
    # Some tasks stop sympy by an alarm and call the answer wrong then: a slow machine would say other than a fast one. The parent's CPU time decides.
    signal.alarm = lambda seconds: 0
    signal.setitimer = lambda which, seconds, interval=0.0: (0.0, 0.0)
    seed = _load()
    lock_in(["/dev/null"])
    answers.write("ready\n")
    answers.flush()
    for line in sys.stdin:
        reply: tuple[str, object]
        try:
            question = json.loads(line)
            if isinstance(question, str):
                reply = ("loaded", named_function(question).__name__)
            else:
                terms, completion = question
                seed(0)  # sympy looks for what it may assume in an order that it draws: not another one on each machine
                reply = ("value", value(terms, completion))
        except MemoryError:
            reply = ("error", "scoring needs more memory than is allowed")
        except NotScored as error:
            reply = ("error", str(error))
        except ModuleNotFoundError as error:
            reply = (
                "error",
                f"it is scored with {error.name or error}, which is not a part of the environment lm-eval"[:300],
            )
        except Exception as error:  # the functions of tasks raise anything; what they do is not a score
            reply = ("error", f"{type(error).__name__}: {error}"[:300])
        answers.write(json.dumps(reply) + "\n")
        answers.flush()


def _load() -> Callable[[int], None]:
    """Import what nearly every task needs; returns what makes sympy draw from a number on.

    Tasks take `verify` from math-verify when they are loaded. What it finds equal though it is not is the same here as in our own judge, and so is
    what is done about it; else `max(oo, 37)` would be the answer to every question of such a task.
    """
    import math_verify
    from math_verify import grader
    from sympy.core.random import seed

    from shoal.rewards.math.confirm import guarded

    math_verify.verify = grader.verify = guarded(grader.verify)
    exact = {"metric": "exact_match", "until": [], "filters": [{"function": "take_first"}], "target": "1"}
    assert value(exact, answer_of("1", [])) == 1.0
    reseed: Callable[[int], None] = seed
    return reseed


if __name__ == "__main__":
    main()
