"""What a model writes in episodes of the packages in `verifiers_packages`: of each task several episodes, each a list of turns.

Right ones, wrong ones, such that call tools in parallel or badly, and hostile texts. Told from the task's data alone, so that `vf-eval` and Shoal get
the same. Called by `verifiers_environments`.
"""

import json
from collections.abc import Callable
from typing import Any

Episodes = list[list[str]]
HOSTILE = ["", "no answer", "x" * 2000, "Answer: \\boxed{9^{9^{9}}}", '{"name": 1}', "<think>and on"]
"""Of every package without tools."""


def call(name: str, /, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def _plain(right: str, *others: str) -> Episodes:
    return [[text] for text in (right, f"{right}0", *others, *HOSTILE)]


def word_sums(data: dict[str, Any]) -> Episodes:
    return _plain(f"Answer: {data['answer']}", data["answer"], "Answer: 5 Answer: 6")


def boxed_products(data: dict[str, Any]) -> Episodes:
    value = int(data["answer"].partition("{")[2].partition("}")[0]) // 2
    return _plain(
        f"\\boxed{{{value}}}", f"It is \\boxed{{{value}.0}}", f"\\boxed{{\\frac{{{value * 3}}}{{3}}}}", f"{value}"
    )


def json_cards(data: dict[str, Any]) -> Episodes:
    card = data["card"]
    return _plain(json.dumps(card), json.dumps(card | {"age": 1}), json.dumps([card]), json.dumps(card | {"more": 2}))


def sorted_words(data: dict[str, Any]) -> Episodes:
    words = sorted(data["words"])
    return _plain(", ".join(words), ", ".join(reversed(words)), words[0])


def thoughtful(data: dict[str, Any]) -> Episodes:
    said = data["answer"]
    return _plain(said, f"<think>Hands, hm.</think>{said}.", f"<think>{said}</think>no")


def due_dates(data: dict[str, Any]) -> Episodes:
    import datetime

    day = datetime.date.fromisoformat(data["day"]) + datetime.timedelta(days=data["later"])
    return _plain(day.isoformat(), data["day"], "2026-02-31")


def endless_parity(data: dict[str, Any]) -> Episodes:
    return _plain(data["answer"], data["answer"].upper(), "even or odd")


def plain_calculator(data: dict[str, Any]) -> Episodes:
    words = data["prompt"].rstrip("?").split()
    first, second = int(words[2]), int(words[4])
    right = call("multiply", first=first, second=second)
    return [
        [right, f"It is {data['answer']}."],
        [f"Let me see. {right}{call('divide', first=first, second=0)}", data["answer"]],
        [call("multiply", first="many"), call("add", first=1), right, "I do not know."],
        [data["answer"]],
        [right + right, "twice the same"],
    ]


def atlas(data: dict[str, Any]) -> Episodes:
    name = data["prompt"].rstrip("?").split()[-1]
    return [
        [call("atlas_tools_search", words=name), f"It is {data['answer']}."],
        [call("atlas_tools_search", words="a", most=2), call("atlas_tools_search", words="zzz"), "Atlantis"],
        [data["answer"]],
    ]


def stock_room(data: dict[str, Any]) -> Episodes:
    def add(count: int) -> str:
        return call("room_tools_add", goods=data["goods"], count=count)

    return [
        [add(1), add(data["wanted"] - 1), "done"],
        [add(1) + add(data["wanted"] - 1) + call("room_tools_count"), "done"],
        [add(data["wanted"] + 1), call("room_tools_add", goods=data["goods"]), "done"],
        [call("room_tools_count"), "done"],
        ["done"],
    ]


def grid_walk(data: dict[str, Any]) -> Episodes:
    east, north = call("grid_tools_move", direction="east"), call("grid_tools_move", direction="north")
    return [
        [call("grid_tools_look"), east * data["far"], north, "here"],
        [east * data["far"] + north + north, call("grid_tools_move", direction="south"), "here"],
        [call("grid_tools_move", direction="up"), "here"],
        ["here"],
    ]


SCRIPTS: dict[str, Callable[[dict[str, Any]], Episodes]] = {
    each.__name__: each
    for each in (
        word_sums,
        boxed_products,
        json_cards,
        sorted_words,
        thoughtful,
        due_dates,
        endless_parity,
        plain_calculator,
        atlas,
        stock_room,
        grid_walk,
    )
}
