"""Reads documents with the code of an earlier release: run by `record_older_reader.py` where that code alone can be imported.

In: on standard input, a JSON list of documents with `name`, `kind` (the class that writes it today) and `text`. Out: on standard output, a JSON
object from each name to `read`, or to why not. Imports nothing that the earlier release lacks.
"""

import json
import sys
from typing import Any

import recorded_documents
from pydantic import ValidationError

from shoal.contracts.base import Contract
from shoal.contracts.signed import Signed

ENVELOPE = "Signed["
assert recorded_documents.DOCUMENTS  # the earlier release's own table, which imports all classes of its documents


def known(kind: type[Contract]) -> dict[str, type[Contract]]:
    """Classes of documents by name."""
    found = {kind.__name__: kind}
    for each in kind.__subclasses__():
        found |= known(each)
    return found


def verdict(classes: dict[str, type[Contract]], kind: str, text: str) -> str:
    """`read`, or what the release does not know of a document."""
    inner = classes.get(kind.removeprefix(ENVELOPE).removesuffix("]"))
    if inner is None:
        return "it does not know this kind of document"
    envelope: Any = Signed
    model = envelope[inner] if kind.startswith(ENVELOPE) else inner
    try:
        model.from_json(text)
    except ValidationError as refused:
        return "refused: " + ", ".join(sorted({".".join(map(str, each["loc"])) for each in refused.errors()}))
    return "read"


def main() -> None:
    """Read all documents and print what became of each."""
    classes = known(Contract)
    asked = json.load(sys.stdin)
    json.dump({each["name"]: verdict(classes, each["kind"], each["text"]) for each in asked}, sys.stdout)


if __name__ == "__main__":
    main()
