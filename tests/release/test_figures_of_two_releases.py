"""What two releases of one commit are said to have in common."""

from typing import Any

from benchmarks.release.whole import compare


def made(**files: bytes) -> dict[str, Any]:
    named = {name.replace("_", "."): text for name, text in files.items()}
    return {"digests": {"image operator-amd64": "sha256:1", "chart": "sha256:2"}, "files": named}


def test_what_is_alike_and_why_the_rest_is_not() -> None:
    first = made(a_whl=b"1", operator_spdx_json=b"1", SHA256SUMS=b"1", b_txt=b"1")
    second = made(a_whl=b"1", operator_spdx_json=b"2", SHA256SUMS=b"2", b_txt=b"2")
    second["digests"]["chart"] = "sha256:3"
    assert compare(first, second) == {
        "same": ["a.whl", "image operator-amd64"],
        "differ": {
            "SHA256SUMS": "it names the others",
            "b.txt": "unknown",
            "chart": "Helm writes the time, and the lock names the registry",
            "operator.spdx.json": "a bill has its time and a random name",
        },
    }


def test_a_file_that_only_one_release_has_differs() -> None:
    assert compare(made(a_whl=b"1"), made())["differ"] == {"a.whl": "unknown"}
