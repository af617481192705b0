"""One completion through the filters and the metric of an lm-evaluation-harness task, from terms that are data alone.

In: terms (`TERMS`) and a completion. Out: the metric's value. The filters and metrics are the harness's own, and so is `process_results` where a task
has it; functions are named as `module:name` and must be modules of the installed package, so that a task table holds no code. The step between filter
and metric of tasks without `process_results` is written out here, as `ConfigurableTask.process_results` has it (lm_eval 0.4.13): that class needs the
data set. Runs in `worker`; nothing else should call it with what strangers wrote.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

TERMS = ("metric", "until", "filters", "target", "metric_arguments", "metric_function", "process_results", "document")
"""The allowed terms; `metric`, `until` and `filters` always. `document` (JSON) is there where a filter or `process_results` asks for it."""
_MODULE = re.compile(r"lm_eval(\.[A-Za-z0-9_-]+)+")
LEFT_OUT = frozenset((
    "rouge_score", "sqlitedict", "word2number", "evaluate", "pytablewriter", "sklearn", "emoji", "fugashi",
    "fuzzywuzzy", "immutabledict", "jieba", "langdetect", "nagisa", "neologdn", "nltk", "pddl", "pycountry",
    "pymorphy2", "rouge", "statsmodels", "tarski", "unitxt", "wonderwords",
))  # fmt: skip
"""Modules that scoring never has, installed or not: the digest does not pin them, and images are made without them (`requirements/overrides.txt`, and
what the extras for tasks of lm_eval 0.4.13 bring). So a task scores alike on every machine, or on none."""
EVALUATES = ("lm_eval.tasks.cruxeval.", "lm_eval.tasks.longproc.", "lm_eval.tasks.score.math.")
"""Modules whose functions evaluate what a model wrote as Python, in a process that scores the answers of others too."""
FUNCTION = "function:"
"""Begins an argument of a filter that is the name of a function."""


def fault(terms: Mapping[str, Any]) -> str | None:
    """Why these are no terms, or None: a data set of strangers may hold anything where they should stand. What the values mean is not looked at."""
    for name in ("metric", "until", "filters"):
        if name not in terms:
            return f"verification_info lacks {name}"
    for name in ("metric", "metric_function", "process_results", "document"):
        if not isinstance(terms.get(name, ""), str):
            return f"verification_info.{name} is no text"
    until, steps = terms["until"], terms["filters"]
    if not isinstance(until, list) or not all(isinstance(text, str) for text in until):
        return "verification_info.until is not a list of texts"
    if not isinstance(steps, list) or not all(
        isinstance(step, dict) and isinstance(step.get("function"), str) for step in steps
    ):
        return 'verification_info.filters is not a list of filters, such as {"function": "take_first"}'
    if not isinstance(terms.get("metric_arguments", {}), dict):
        return "verification_info.metric_arguments is no mapping"
    return None


class NotScored(ValueError):
    """The terms cannot be scored, or gave no value; the message says why."""


def value(terms: Mapping[str, Any], completion: str) -> float:
    """The metric's value, 0 to 1. Raises NotScored, and whatever the task's own functions raise."""
    answer = answer_of(completion, terms["until"])
    document = json.loads(terms["document"]) if "document" in terms else {}
    filtered = _filtered(terms["filters"], answer, document)
    if "process_results" in terms:
        results = named_function(terms["process_results"])(document, [filtered])
        if terms["metric"] not in results:
            raise NotScored(f"process_results gave {', '.join(map(str, results))[:200]} and no {terms['metric']}")
        found = results[terms["metric"]]
    else:
        found = _measured(terms, filtered)
    try:
        number = float(found)
    except (TypeError, ValueError):
        number = math.nan
    if not 0.0 <= number <= 1.0:
        raise NotScored(f"{terms['metric']} is {str(found)[:80]!r} for one answer; a score is a number from 0 to 1")
    return number


def answer_of(completion: str, until: list[str]) -> str:
    """The part of a completion that counts: what follows the thoughts, up to the first of the texts at which the task stops a model."""
    _, thoughts_end, after = completion.rpartition("</think>")
    answer = after.lstrip() if thoughts_end else completion
    for text in until:
        answer = answer.partition(text)[0] if text else answer
    return answer


@cache
def named_function(name: str) -> Callable[..., Any]:
    """The function `module:name` of the installed harness. NotScored for any other module.

    A module of a task is loaded from its file, as the harness does: the package around it would load data sets and models too.
    """
    module, _, attribute = name.partition(":")
    if not _MODULE.fullmatch(module) or not attribute.isidentifier():
        raise NotScored(f"{name!r:.120} is not a function of the installed lm_eval")
    if module.startswith(EVALUATES):
        raise NotScored(f"{name:.120} evaluates answers as programs: Shoal scores no task that needs it")
    package = find_spec("lm_eval")
    if package is None or package.origin is None:
        raise NotScored("lm_eval is not installed here; install the extra `lm-eval` of shoal-rl")
    path = Path(package.origin).parent.joinpath(*module.split(".")[1:]).with_suffix(".py")
    if module.startswith("lm_eval.tasks.") and path.is_file():
        spec = spec_from_file_location(module, path)
        assert spec is not None
        assert spec.loader is not None
        loaded = module_from_spec(spec)
        spec.loader.exec_module(loaded)
    else:
        loaded = import_module(module)
    found: Callable[..., Any] | None = getattr(loaded, attribute, None)
    if not callable(found):
        raise NotScored(f"the installed lm_eval has no function {name!r:.120}")
    return found


def _filtered(steps: list[Mapping[str, Any]], answer: str, document: Any) -> Any:
    """As `FilterEnsemble.apply` does for one document with one response."""
    responses: Any = [[answer]]
    for step in steps:
        arguments = {
            key: named_function(given.removeprefix(FUNCTION))
            if isinstance(given, str) and given.startswith(FUNCTION)
            else given
            for key, given in step.items()
            if key != "function"
        }
        responses = list(_filter(step["function"])(**arguments).apply(responses, [document]))
    return responses[0]


@cache
def _filter(name: str) -> Callable[..., Any]:
    import lm_eval.filters  # noqa: F401 - fills the registry
    from lm_eval.api.registry import get_filter

    found: Callable[..., Any] = get_filter(name)
    return found


@cache
def _metric(name: str) -> Callable[..., Any]:
    import lm_eval.api.metrics  # noqa: F401 - fills the registry
    from lm_eval.api.registry import METRIC_REGISTRY

    if name not in METRIC_REGISTRY:  # asked for an unknown one, get_metric would look on a hub
        raise NotScored(f"the installed lm_eval has no metric {name!r}")
    found: Callable[..., Any] = METRIC_REGISTRY[name]
    return found


def _measured(terms: Mapping[str, Any], result: Any) -> Any:
    name, target, arguments = terms["metric"], terms["target"], terms.get("metric_arguments", {})
    function = named_function(terms["metric_function"]) if "metric_function" in terms else _metric(name)
    if not isinstance(target, list):
        return _score(function, name, target, result, arguments)
    if name == "exact_match":
        found = function(references=target, predictions=[result] * len(target), **arguments)[name]
        return 1.0 if found > 0.0 else 0.0
    return 1.0 if any(_score(function, name, one, result, arguments) for one in target) else 0.0


def _score(function: Callable[..., Any], name: str, target: Any, result: Any, arguments: Mapping[str, Any]) -> Any:
    try:
        found = function(references=[target], predictions=[result], **arguments)
    except TypeError:  # the harness has two kinds of metrics, and tells them by this
        found = function([target, result])
    return found[name] if isinstance(found, dict) else found
