"""The measured parts of docs/adversaries.md: between two marks each, written anew from `trust.json`. Pure but for `write_page`.

In: the parts of the result. Out: lines of Markdown, and the picture. Called by `__main__` at its end; what nobody has measured says so.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[2] / "docs" / "adversaries.md"
PICTURE = "images/adaptive_liar.svg"
"""Beside the page."""
NOT_MEASURED = ["Not measured yet."]
ALL_ROWS = "parsing, cheap checks, rewards (one core)"
"""The part of a check that looks at every row, whatever the node's standing."""


def replaced(page: str, block: str, lines: Sequence[str]) -> str:
    """The page with the lines of `block` replaced; raises ValueError when it has no such block."""
    begin, end = f"<!-- {block} -->", f"<!-- end of {block} -->"
    if begin not in page or end not in page:
        raise ValueError(f"the page lacks the marks {begin} and {end}")
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n" + "\n".join(lines) + f"\n{end}{after}"


def honest_lines(part: Mapping[str, Any]) -> list[str]:
    """A row for each way of generating, then the rate."""
    lines = ["| way | files | sequences | rejected |", "|---|---|---|---|"]
    lines += [f"| {row['way']} | {row['files']} | {row['sequences']} | {row['rejected']} |" for row in part["ways"]]
    low, high = part["interval_95"]
    return [
        *lines,
        "",
        f"{part['rejected_files']} of {part['files']} files ({part['sequences']} sequences) were rejected: a rate of {part['false_reject_rate']:.3g}"
        f" a file, with 95 % confidence between {low:.3g} and {high:.3g}.",
    ]


def run_lines(part: Mapping[str, Any]) -> list[str]:
    """A row for each run, then the rate."""
    lines = ["| checked by | files | sequences | rejected | found once, not twice |", "|---|---|---|---|---|"]
    lines += [
        f"| {row['run']} | {row['files']} | {row['sequences']} | {row['rejected']} | {row['not_confirmed']} |"
        for row in part["runs"]
    ]
    low, high = part["interval_95"]
    return [
        *lines,
        "",
        f"{part['rejected_files']} of {part['files']} files were rejected: with 95 % confidence a rate between {low:.3g} and {high:.3g} a file.",
    ]


def power_lines(part: Mapping[str, Any]) -> list[str]:
    """One table a dtype: rejected of judged files in each setting, and the reasons that were named."""
    lines: list[str] = []
    for dtype, measured in part.items():
        if not isinstance(measured, Mapping) or "weights" not in measured:
            continue
        settings = list(next(iter(measured["weights"].values())))
        lines += [f"| {dtype} | {' | '.join(settings)} | named | silent |", "|---|" + "---|" * (len(settings) + 2)]
        for name, row in measured["weights"].items():
            cells = [f"{row[setting]['rejected']}/{row[setting]['judged']}" for setting in settings]
            reasons = sorted({reason for setting in settings for reason in row[setting]["reasons"]})
            silent = [setting for setting in settings if row[setting]["rejected"] == 0]
            told = "yes, as it should be" if name == "honest" else _silence(silent, settings)
            lines.append(f"| {name} | {' | '.join(cells)} | {', '.join(reasons) or 'nothing'} | {told} |")
        lines.append("")
    return lines[:-1]


def cost_lines(part: Mapping[str, Any]) -> list[str]:
    """Seconds and their ratio, then the file of the paper's size."""
    ratio, verifying, checked = part["generate_over_verify"], part["verify_cpu_seconds"], part["rows_checked"]
    paper = part["paper_size"]
    terms = [
        f"| {name} | {arithmetic} | {seconds:.1f} |"
        for (name, seconds), arithmetic in zip(paper["seconds"].items(), paper["arithmetic"], strict=True)
    ]
    verified = [
        f"{verifying[name]:.2f} {words} ({checked[name]} rows, {ratio[name]:.0f} times cheaper)"
        for name, words in (("good_standing", "at good standing"), ("probation", "on probation"))
    ]
    assumed = paper["assumed"]
    return [
        f"A file of {part['rows_a_file']} rows and {part['tokens_a_file']:.0f} tokens, {part['model']}:"
        f" {part['generate_cpu_seconds']:.1f} CPU seconds to generate (vLLM); to verify {' and '.join(verified)}."
        f" The file has {part['file_bytes'] / 2**10:.0f} KiB.",
        "",
        f"A file of the paper's size ({assumed['rows']} rows of {assumed['tokens_a_row']} tokens, 32B parameters,"
        " a tenth of the rows checked), from these rates; the accelerator's is assumed, 40 % of an H100's 989 TFLOP/s:",
        "",
        "| part | arithmetic | seconds |",
        "|---|---|---|",
        *terms,
        f"| in all | one after the other | {paper['seconds_in_all']:.1f} |",
        "",
        f"With every row checked, as for a key on probation or a second opinion: the same rates make {every_row_seconds(paper):.0f} s,"
        " nearly all of it prefill: the paper's minute is kept for nodes in good standing alone, on one accelerator.",
    ]


def every_row_seconds(paper: Mapping[str, Any]) -> float:
    """Seconds for the file of the paper's size with all of its rows checked: what grows with the rows drawn grows to all of them."""
    rows, share = paper["assumed"]["rows"], paper["assumed"]["proof_rows_share"]
    drawn = math.ceil(share * rows)
    return float(
        sum(seconds if name == ALL_ROWS else seconds * rows / drawn for name, seconds in paper["seconds"].items())
    )


def mutated_lines(part: Mapping[str, int]) -> list[str]:
    """Outcomes of the mutations, most frequent first."""
    ordered = sorted(part.items(), key=lambda item: -item[1])
    return ["| outcome | files |", "|---|---|", *(f"| {outcome} | {count} |" for outcome, count in ordered)]


def adaptive_lines(part: Mapping[str, Any]) -> list[str]:
    """A row for each type of serving: what a liar can choose, and honest files beside it."""
    kinds = tuple(next(iter(by_dtype(part).values()))["cheap"])
    lines = [
        "| served in | tokens not drawn: "
        + ", ".join(kinds)
        + " | reward up | reward down | bits a token | honest files rejected |",
        "|---|---|---|---|---|---|",
    ]
    for dtype, each in by_dtype(part).items():
        shares = ", ".join(f"{each['cheap'][kind]['share']:.2%}" if kind in each["cheap"] else "none" for kind in kinds)
        honest = each["honest"]
        lines.append(
            f"| {dtype} | {shares} | +{each['reward_shift_up']:.3f} | {each['reward_shift_down']:.3f} | {each['free']['bits_a_token']:.4f}"
            f" | {honest['rejected']} of {honest['files']} (at most {honest['false_reject_rate_upper_95']:.1%}) |"
        )
        for direction, of in each.get("dropped", {}).items():
            average = ", ".join(f"{shift:+.4f} over {files}" for files, shift in of["over_files"].items())
            lines.append(f"| {dtype}, a row dropped, {direction} | | {of['a_file']:+.3f}, a file {average} | | | |")
        if "free_on_a_gpu" in each:
            gpu = each["free_on_a_gpu"]
            lines.append(f"| {dtype}, a GPU's noise injected | | | | {gpu['bits_a_token']:.4f} | |")
    return lines


AIMS = {"int8": "int8 writes", "int4": "int4 writes", "up": "best of 4", "down": "worst of 8"}


def standing_lines(part: Mapping[str, Any]) -> list[str]:
    """A row for each type of serving, aim and number of false rows: what is gained in a file, and how soon it is found."""
    lines = [
        "| served in | aim | false rows | rows checked | tokens not drawn | reward moved | rejected | rows left out"
        " | accepted in a row | files until found |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, each in by_dtype(part).items():
        for aim, words in AIMS.items():
            for file in each[aim]:
                until = "none was" if file["files_until_found"] is None else f"{file['files_until_found']:.3g}"
                lines.append(
                    f"| {name} | {words} | {file['false_rows']} of {each['rows']} | {file['rows_checked']} | {file['tokens_not_drawn']:.2%}"
                    f" | {file['reward_shift']:+.3f} | {file['rejected']} of {each['looks']} | {file['left_out']} | {file['accepted']} | {until} |"
                )
    return lines


def many_lines(part: Mapping[str, Any]) -> list[str]:
    """A row for each type of serving: honest files, and the upper limit of their rate of rejects."""
    rows = [
        f"| {name} | {each['files']} | {each['rejected']} | {each['upper_95']:.3%} |"
        for name, each in by_dtype(part).items()
    ]
    return ["| served in | files, every row checked | rejected | rate at most (95 %) |", "|---|---|---|---|", *rows]


def draw_curves(parts: Mapping[str, Any], picture: Path) -> list[str]:
    """Draw what an adaptive liar gains, by type of serving, into `picture`; the lines of Markdown that show it."""
    if "standing" not in parts:
        return NOT_MEASURED
    from benchmarks.trust import figure  # matplotlib, which nobody else here needs

    found = figure.curves(by_dtype(parts["standing"]), by_dtype(parts.get("adaptive", {})), honest_counts(parts))
    figure.draw(found, AIMS, picture)
    alt = "Tokens not drawn, reward moved, files not rejected and files accepted, over false rows of a file, by type of serving"
    return [f"![{alt}]({PICTURE})", "", *figure.captions(found)]


def honest_counts(parts: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """By type of serving: honest files judged with every row checked, and how many of them were rejected, in all parts."""
    files, rejected = Counter[str](), Counter[str]()
    for part in ("honest", "whole-runs"):
        if part in parts:
            files[parts[part]["dtype"]] += parts[part]["files"]
            rejected[parts[part]["dtype"]] += parts[part]["rejected_files"]
    adaptive = {name: each["honest"] for name, each in by_dtype(parts.get("adaptive", {})).items()}
    for counts in (adaptive, by_dtype(parts.get("many-files", {}))):
        for name, each in counts.items():
            files[name] += each["files"]
            rejected[name] += each["rejected"]
    return {name: (files[name], rejected[name]) for name in files}


def by_dtype(part: Mapping[str, Any]) -> dict[str, Any]:
    """What a part found for each type of serving, without the facts of its measuring."""
    return {name: each for name, each in part.items() if isinstance(each, Mapping) and name != "versions"}


BLOCKS = {
    "adaptive": adaptive_lines,
    "standing": standing_lines,
    "honest": honest_lines,
    "many-files": many_lines,
    "whole-runs": run_lines,
    "power": power_lines,
    "cost": cost_lines,
}
CURVES = "curves"


def write_page(parts: Mapping[str, Any], page: Path = PAGE) -> None:
    """Write the measured blocks of the page."""
    text = page.read_text()
    for block, lines in BLOCKS.items():
        text = replaced(text, block, lines(parts[block]) if block in parts else NOT_MEASURED)
    text = replaced(
        text, "mutated", mutated_lines(parts["mutated"]["outcomes"]) if "mutated" in parts else NOT_MEASURED
    )
    page.write_text(replaced(text, CURVES, draw_curves(parts, page.parent / PICTURE)))


def _silence(silent: Sequence[str], settings: Sequence[str]) -> str:
    if not silent:
        return "nowhere"
    return "everywhere: not told from honest" if len(silent) == len(settings) else ", ".join(silent)
