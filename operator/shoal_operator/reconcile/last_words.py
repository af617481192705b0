"""The last words of containers that failed: exit code, signal, reason and the end of the log. Pure.

A kubelet keeps the end of a failed container's log in its pod's status (`terminationMessagePolicy: FallbackToLogsOnError`, at most 2,048 bytes). The
pod soon goes, with its Job or its node. So the run's status keeps one entry for each cause: at most `MOST_CAUSES`, about 10 kB together.
"""

import re
import signal
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from shoal_operator.api.last_words import MOST_CAUSES, MOST_WORDS, LastWords
from shoal_operator.children.names import COMPONENT_LABEL
from shoal_operator.engine.cluster import Object
from shoal_operator.reconcile.decisions import parse_time

LINES = 20
AGAIN_SECONDS = 600.0
"""The same cause is written again no sooner: hundreds of workers that crash in turn must not write the status at each crash."""
SIGNAL_CODES = 128
"""A container that signal `n` ended has exit code 128 + `n`."""
ORDERLY = {"SIGTERM"}
"""How a pod ends that was told to."""
NAMED_FIRST = 2
"""Causes that a message names; the status has the others."""

_SECRETS = [
    re.compile(r"-----BEGIN [^-]*-----.*?(?:-----END [^-]*-----|\Z)", re.DOTALL),
    re.compile(r"(?i)(?<=bearer )[^\s\"',]+|(?<=basic )[A-Za-z0-9+/=]{8,}"),
    re.compile(r"\b(?:hf_|sk-|ghp_|gho_|ghs_|github_pat_|glpat-|xox[abp]-|AKIA|ASIA)[A-Za-z0-9_-]{8,}"),
    re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_.-]+"),
    re.compile(r"(?<=://)(?:[^\s/:]*:[^\s\"']+|[^\s/\"']+)(?=@)"),
    re.compile(r"(?<!sha256:)\b[0-9a-fA-F]{64,}\b"),
    re.compile(r"(?<!sha256:)(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{60,}={0,2}"),
]
_NAMED = re.compile(
    r"(?i)((?:password|passwd|pwd|passphrase|secret(?:_?-?key)?|token|api_?-?key|access_?-?key(?:_?id)?|private_?-?key|signature|(?<![a-z])sig|credential)\\?[\"']?\s*[:=]\s*\\?[\"']?)"
    r"(?!\d+(?:\.\d+)?(?:[\s\"'\\,;&}]|$))[^\s\"'\\,;&}]{4,}"
)
HIDDEN = "(hidden)"


def without_secrets(text: str) -> str:
    """The text with all that looks like a key, a token or a password hidden. It rather hides a digest than shows a key."""
    for pattern in _SECRETS:
        text = pattern.sub(HIDDEN, text)
    return _NAMED.sub(rf"\1{HIDDEN}", text)


def last_lines(text: str) -> str:
    """The last lines of a log, without secrets and what no status may contain, and no longer than a status should be."""
    printable = "".join(each for each in without_secrets(text) if each == "\n" or each.isprintable())
    lines = "\n".join(printable.strip().splitlines()[-LINES:])
    return lines if len(lines) <= MOST_WORDS else "..." + lines[3 - MOST_WORDS :]


def failed_containers(pods: Iterable[Object]) -> list[LastWords]:
    """What the failed containers of these pods said, those that were started again too."""
    return [words for pod in pods for words in _of_pod(pod)]


def merged(remembered: Any, found: Iterable[LastWords]) -> list[LastWords]:
    """The newest of every cause, newest first. What is `remembered` is from the status; an entry that nobody can read is left out.

    A cause is a component's container, its exit code and its reason.
    """
    known: dict[tuple[str, str, int | None, str], LastWords] = {}
    for words in [*_readable(remembered), *sorted(found, key=lambda each: (each.finished_at, each.pod))]:
        cause = (words.component, words.container, words.exit_code, words.reason)
        before = known.get(cause)
        if before is None or _seconds_between(before.finished_at, words.finished_at) >= AGAIN_SECONDS:
            known[cause] = words
    return sorted(known.values(), key=lambda each: (each.finished_at, each.pod), reverse=True)[:MOST_CAUSES]


def said_by(job: str, kept: Iterable[LastWords]) -> str:
    """What the pods of a Job said, in one line: first what the kernel or Kubernetes did to them, then the earliest. Empty for nothing."""
    own = [words for words in kept if words.pod.startswith(f"{job}-")]
    first = sorted(own, key=lambda each: (each.reason in ("", "Error"), each.finished_at))
    return "; ".join(_line(words) for words in first[:NAMED_FIRST])


def said_of(component: str, kept: Iterable[LastWords]) -> str:
    """The newest failure of a component's pods and when it was, in one line; empty for none."""
    newest = max(
        (each for each in kept if each.component == component), key=lambda each: each.finished_at, default=None
    )
    return f"last failure at {newest.finished_at}: {_line(newest)}" if newest is not None else ""


def _line(words: LastWords) -> str:
    code = f"exit code {words.exit_code}" if words.exit_code is not None else ""
    how = ", ".join(filter(None, [words.reason if words.reason != "Error" else "", code, words.signal]))
    last = words.lines.rsplit("\n", 1)[-1]
    container = f"container {words.container}: " if words.container else ""
    return f"pod {words.pod}: {container}{how}" + (f": {last}" if last else "")


def _of_pod(pod: Object) -> list[LastWords]:
    metadata, status = pod["metadata"], pod.get("status", {})
    component, told_to = metadata.get("labels", {}).get(COMPONENT_LABEL, ""), bool(metadata.get("deletionTimestamp"))
    made = []
    for container in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
        for state in (container.get("lastState", {}), container.get("state", {})):
            ended = state.get("terminated")
            if not ended or not ended.get("exitCode"):
                continue
            code, by = int(ended["exitCode"]), _signal(int(ended["exitCode"]), ended.get("signal"))
            if told_to and by in ORDERLY:
                continue
            made.append(
                LastWords(
                    component=component,
                    pod=metadata["name"],
                    container=container.get("name", ""),
                    exit_code=code,
                    signal=by,
                    reason=str(ended.get("reason") or "Error"),
                    finished_at=str(ended.get("finishedAt") or ""),
                    lines=last_lines(str(ended.get("message", ""))),
                )
            )
    if not made and status.get("phase") == "Failed" and status.get("reason"):
        # Evicted, or its node is lost: no container has a word.
        said = last_lines(str(status.get("message", "")))
        since = str(metadata.get("creationTimestamp") or "")
        made.append(
            LastWords(component=component, pod=metadata["name"], reason=status["reason"], finished_at=since, lines=said)
        )
    return made


def _signal(code: int, said: int | None) -> str:
    number = said or (code - SIGNAL_CODES if code > SIGNAL_CODES else 0)
    try:
        return signal.Signals(number).name
    except ValueError:
        return ""


def _readable(remembered: Any) -> list[LastWords]:
    made = []
    for each in remembered or []:
        try:
            made.append(LastWords.model_validate(each))
        except ValidationError:
            continue
    return made


def _seconds_between(before: str, after: str) -> float:
    first, then = parse_time(before), parse_time(after)
    return (then - first).total_seconds() if first is not None and then is not None else 0.0
