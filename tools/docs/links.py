"""Where a link of a Markdown file leads, inside this repository and on the site. Pure; used by the site's hook and by the tests of docs.

A link is resolved as GitHub does: relative to the file that it stands in. On the site everything below docs/ keeps its place, README.md is
the front page. Any other file of the repository is shown on a page of its own below `source/`.
"""

import posixpath
import re
from collections.abc import Iterator

LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\]\()([^()\s]+)(\))")
"""Inline links and images; the text may hold one pair of brackets."""
FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")
CODE = re.compile(r"(`+).+?\1")
SOURCE = "source/"


def is_external(target: str) -> bool:
    """Whether a link leaves the repository."""
    return bool(re.match(r"[a-z][a-z0-9+.-]*:", target, re.IGNORECASE)) or target.startswith("//")


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Lines outside of fenced code, with their numbers from 1."""
    closing = ""
    for number, line in enumerate(text.splitlines(), 1):
        found = FENCE.match(line)
        if closing:
            if found and line.strip().startswith(closing) and not line.strip().strip(closing[0]):
                closing = ""
            continue
        if found:
            closing = found.group(1)
            continue
        yield number, line


def links(text: str) -> Iterator[tuple[int, str]]:
    """Targets of all inline links and images outside of code, with their lines."""
    for number, line in prose(text):
        for found in LINK.finditer(CODE.sub(lambda code: "`" * len(code.group()), line)):
            yield number, found.group(2)


def resolved(file: str, target: str) -> tuple[str, str]:
    """(path from the repository's root, fragment) of a link in `file`; the path of the file itself for `#fragment`."""
    path, _, fragment = target.partition("#")
    if not path:
        return file, fragment
    return posixpath.normpath(posixpath.join(posixpath.dirname(file), path)), fragment


def site_path(path: str) -> str:
    """Where a file or folder of the repository lies on the site, as a Markdown source path."""
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"{SOURCE}{path}.md"


def rewritten(text: str, file: str) -> str:
    """`text` of the repository's `file` with every link as the site needs it; code stays as it is."""
    here = posixpath.dirname(site_path(file))

    def one(found: re.Match[str]) -> str:
        target = found.group(2)
        if is_external(target) or target.startswith("#"):
            return found.group()
        path, fragment = resolved(file, target)
        moved = posixpath.relpath(site_path(path), here or ".")
        return f"{found.group(1)}{moved}{'#' + fragment if fragment else ''}{found.group(3)}"

    lines = text.splitlines()
    for number, line in prose(text):
        pieces, at = [], 0
        for code in CODE.finditer(line):  # `[x](y)` in code is not a link, and a link's text may hold code
            if not any(link.start() < code.start() < link.end() for link in LINK.finditer(line)):
                pieces += [LINK.sub(one, line[at : code.start()]), code.group()]
                at = code.end()
        lines[number - 1] = "".join(pieces) + LINK.sub(one, line[at:])
    return "\n".join(lines) + "\n"
