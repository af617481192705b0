"""Golden bytes of every document: what is signed, stored or sent stays what it is, whatever its class is called and wherever it is defined."""

import importlib
import pkgutil
from collections.abc import Iterator

import pytest
from record_contracts import CONTRACTS, WRITTEN
from recorded_documents import DOCUMENTS, ENTRIES, SIGNED, sample
from recorded_texts import REQUEST

import samples
import shoal
from shoal.contracts.base import Contract, SpecModel
from shoal.contracts.protocol import RelayToken
from shoal.contracts.relay_token import decode
from shoal.contracts.signed import BadSignature, Signed
from shoal.crypto.http_signatures import verify_request


def recorded(name: str) -> bytes:
    return (CONTRACTS / f"{name}.json").read_bytes()


@pytest.mark.parametrize("name", WRITTEN)
def test_the_code_writes_the_recorded_bytes(name: str) -> None:
    assert (CONTRACTS / name).is_file(), f"{name} is not recorded: run tests/recorded/record_contracts.py"
    assert WRITTEN[name] == (CONTRACTS / name).read_bytes()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_recorded_bytes_are_read_and_written_again(name: str) -> None:
    read = type(DOCUMENTS[name]).from_json(recorded(name))
    assert read == DOCUMENTS[name]
    assert read.to_json() == recorded(name)


def test_every_recorded_file_has_a_name_in_the_table() -> None:
    assert {path.name for path in CONTRACTS.iterdir()} == WRITTEN.keys()


SIGNERS = {name: key.public for name, (_, key) in SIGNED.items()} | dict.fromkeys(
    ENTRIES, samples.ORCHESTRATOR_KEY.public
)


@pytest.mark.parametrize("name", SIGNERS)
def test_a_recorded_signature_fits_and_no_other_document(name: str) -> None:
    read = type(DOCUMENTS[name]).from_json(recorded(name))
    assert isinstance(read, Signed)
    read.verified(SIGNERS[name])
    changed = read.model_copy(update={"document": read.document.model_copy(update={"run": "another"})})
    with pytest.raises(BadSignature):
        changed.verified(SIGNERS[name])


def test_a_recorded_token_and_a_recorded_request_are_believed() -> None:
    word = (CONTRACTS / "relay-token-word.txt").read_text()
    token = decode(word, signer=samples.ORCHESTRATOR_KEY.public, run=samples.RUN, now_unix=samples.NOW)
    assert token == sample(RelayToken)
    lines = (CONTRACTS / "request-signature.txt").read_text().splitlines()
    headers = dict(line.split(": ", 1) for line in lines)
    assert verify_request(**REQUEST, headers=headers, now_unix=samples.NOW).key == samples.NODE


def contained(value: object) -> Iterator[type]:
    """Classes of a document and of the documents in it."""
    if isinstance(value, Contract):
        yield type(value)
        value = vars(value)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    for part in parts:
        yield from contained(part)


def defined(base: type[Contract]) -> Iterator[type[Contract]]:
    """Classes of the product that derive from `base`; private ones and `Signed[...]` are bases themselves."""
    for kind in base.__subclasses__():
        yield from defined(kind)
        if kind.__module__.startswith("shoal.") and not kind.__name__.startswith("_"):
            yield kind


def test_every_class_of_document_has_recorded_bytes() -> None:
    for module in pkgutil.walk_packages(shoal.__path__, "shoal."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    # A base of a recorded document is recorded with it: its fields are among the document's.
    there = {base for document in DOCUMENTS.values() for kind in contained(document) for base in kind.mro()}
    classes = {kind for kind in defined(Contract) if not issubclass(kind, Signed)} - {SpecModel}
    missing = sorted(kind.__name__ for kind in classes - there)
    assert not missing, f"add to tests/recorded/recorded_documents.py and run record_contracts.py: {missing}"
