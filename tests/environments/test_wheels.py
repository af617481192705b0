"""Wheels that a run may bring, and each kind that it may not: one line says which package and why, and nothing is written outside of the folder."""

import io
import struct
import tarfile
import zipfile
from pathlib import Path

import pytest

from shoal.environments import wheels as module
from shoal.environments.wheels import BadPackages, check_together, needs, own_packages, read_wheel, unpack
from wheels_made import POINT, echo_words, echoes, wheel

PLAIN = {"echo_words.py": "def shouted(word):\n    return word\n"}


def refused(data: bytes) -> str:
    with pytest.raises(BadPackages) as error:
        read_wheel(data, "package x")
    assert "\n" not in str(error.value)
    return str(error.value)


def refused_together(*data: bytes) -> str:
    with pytest.raises(BadPackages) as error:
        check_together([read_wheel(each, "x") for each in data])
    return str(error.value)


def test_a_wheel_says_what_it_brings_and_what_it_needs() -> None:
    found = read_wheel(echoes(), "x")
    assert (found.package, found.version) == ("shoal-environment-echoes", "1.0")
    assert found.environments == ("echoes",)
    assert found.modules == {"echoes_env"}
    assert [str(each) for each in needs(found.requires, "x")] == ["echo-words>=1"]
    check_together([found, read_wheel(echo_words(), "x")])


def test_its_files_are_laid_out_for_everybody_to_read_and_nobody_to_write(tmp_path: Path) -> None:
    unpack([read_wheel(each, "x") for each in (echoes(), echo_words())], tmp_path)
    files = {str(path.relative_to(tmp_path)): path for path in tmp_path.rglob("*") if path.is_file()}
    assert {"echoes_env/__init__.py", "echo_words.py"} < set(files)
    assert {path.stat().st_mode & 0o777 for path in files.values()} == {0o444}
    assert {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if path.is_dir()} == {0o755}


@pytest.mark.parametrize(
    "path",
    ["../evil.py", "/etc/evil.py", "a/../../evil.py", "a\\..\\evil.py", "c:evil.py", "a/\x1b[0m.py", "a" * 301 + ".py"],
)
def test_no_file_leaves_the_folder(path: str, tmp_path: Path) -> None:
    words = refused(wheel("echo-words", {**PLAIN, path: "evil = 1\n"}))
    assert words.startswith("package x: holds a file ")
    assert words.endswith("outside of its folder, or with a wrong name")


def test_a_link_is_refused() -> None:
    assert "'echo_link' is a link or a device; allowed: files" in refused(
        wheel("echo-words", {**PLAIN, "echo_link": "/etc/passwd"}, links=["echo_link"])
    )


def test_a_file_that_would_lie_below_another_one_is_refused(tmp_path: Path) -> None:
    both = read_wheel(wheel("echo-words", {"a": "x", "a/b.py": "x"}), "x")
    with pytest.raises(BadPackages, match=r"package echo-words 1\.0: cannot be unpacked: "):
        unpack([both], tmp_path)


def test_what_runs_when_python_starts_is_refused() -> None:
    assert "which would run whenever Python starts" in refused(
        wheel("echo-words", {**PLAIN, "echo.pth": "import os\n"})
    )


def test_a_great_expansion_is_refused_by_what_the_archive_says() -> None:
    bomb = wheel("echo-words", {**PLAIN, "zeros.bin": bytes(module.MOST_BYTES + 1)})
    assert len(bomb) < 1 << 20
    assert "is more than 256 MiB unpacked, which is the most that is allowed" in refused(bomb)


def test_a_file_is_unpacked_no_further_than_the_archive_says_and_then_refused(tmp_path: Path) -> None:
    bomb = bytearray(wheel("echo-words", {**PLAIN, "zeros.bin": bytes(1 << 20)}))
    for mark, offset in ((b"PK\x01\x02", 24), (b"PK\x03\x04", 22)):
        place = bomb.find(b"zeros.bin", 0 if mark == b"PK\x03\x04" else bomb.find(b"PK\x01\x02"))
        start = bomb.rfind(mark, 0, place)
        assert struct.unpack_from("<I", bomb, start + offset) == (1 << 20,)
        struct.pack_into("<I", bomb, start + offset, 100)
    found = read_wheel(bytes(bomb), "x")
    with pytest.raises(
        BadPackages, match=r"package echo-words 1\.0: cannot be unpacked: Bad CRC-32 for file 'zeros\.bin'"
    ):
        unpack([found], tmp_path)
    assert (tmp_path / "zeros.bin").stat().st_size <= 100


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA], ids=["bzip2", "lzma"])
def test_a_compression_of_which_one_read_may_be_gigabytes_is_refused_unread(method: int) -> None:
    packed = io.BytesIO(echo_words())
    with zipfile.ZipFile(packed, "a") as archive:
        archive.writestr("zeros.bin", bytes(100), method)
    assert refused(packed.getvalue()) == (
        f"package x: 'zeros.bin' is compressed by method {method}; allowed: stored or deflated, as `pip wheel` packs"
    )


def test_all_wheels_of_a_run_together_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 3000)
    first, second = (read_wheel(wheel(f"echo-{name}", {f"{name}.py": "#" * 2000}), "x") for name in "ab")
    for name in ("bytes", "files"):
        (tmp_path / name).mkdir()
    with pytest.raises(BadPackages, match=r"package echo-b 1\.0: with it there are more than 0 MiB unpacked"):
        unpack([first, second], tmp_path / "bytes")
    monkeypatch.setattr(module, "MOST_FILES", 5)
    with pytest.raises(BadPackages, match=r"package echo-b 1\.0: with it there are more than 5 files"):
        unpack([first, second], tmp_path / "files")


def test_too_large_a_wheel_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WHEEL_BYTES", 100)
    assert refused(echo_words()) == f"package x: the wheel has {len(echo_words())} bytes; allowed: 100"


def test_an_archive_of_sources_is_refused_with_what_to_do() -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("echo-1.0/setup.py"))
    words = "is an archive of sources, whose building runs its code: build a wheel where you trust it (`pip wheel --no-deps`)"
    assert words in refused(packed.getvalue())
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive_:
        archive_.writestr("echo-1.0/setup.py", "")
    assert "it has no METADATA and WHEEL in one .dist-info folder; build a wheel" in refused(zipped.getvalue())


def test_compiled_code_is_refused() -> None:
    allowed = "allowed: wheels of pure Python (py3-none-any), since every machine has the same bytes"
    tagged = wheel("echo-words", PLAIN, tag="cp311-cp311-manylinux_2_17_x86_64")
    assert refused(tagged) == f"package x: is for cp311-cp311-manylinux_2_17_x86_64; {allowed}"
    hidden = wheel("echo-words", {**PLAIN, "echo.cpython-311-x86_64-linux-gnu.so": b"\x7fELF"})
    assert refused(hidden) == f"package x: holds compiled code ('echo.cpython-311-x86_64-linux-gnu.so'); {allowed}"
    assert "holds compiled code ('libx.so.1')" in refused(wheel("echo-words", {**PLAIN, "libx.so.1": b"\x7fELF"}))
    assert read_wheel(wheel("echo-words", {"a.so.d/b.py": ""}), "x").package == "echo-words"


def test_another_python_is_told() -> None:
    assert "needs Python >=3.99; the images have 3." in refused(wheel("echo-words", PLAIN, python=">=3.99"))
    assert "its metadata is wrong: " in refused(wheel("echo-words", PLAIN, python=f">={'9' * 5000}"))


@pytest.mark.parametrize(
    "data", [b"", b"PK\x03\x04", b"no archive", b"\x00" * 1000], ids=["empty", "cut", "text", "zeros"]
)
def test_rubbish_is_no_wheel(data: bytes) -> None:
    assert refused(data).startswith("package x: this is not a wheel: ")


def test_a_damaged_file_is_told_when_it_is_unpacked(tmp_path: Path) -> None:
    data = bytearray(echo_words())
    place = data.find(b"echo_words.py") + len(b"echo_words.py")
    data[place : place + 12] = b"\xff" * 12
    with pytest.raises(BadPackages, match=r"echo-words 1\.0: cannot be unpacked"):
        unpack([read_wheel(bytes(data), "x")], tmp_path)


def test_a_missing_dependency_is_named() -> None:
    assert refused_together(echoes()) == (
        "package shoal-environment-echoes 1.0: needs echo-words>=1, which is neither in packages nor something that Shoal has:"
        " `shoal env add` finds it"
    )
    old = wheel("echo-words", PLAIN, version="0.9")
    assert refused_together(echoes(), old) == (
        "package shoal-environment-echoes 1.0: needs echo-words>=1, and there is echo-words 0.9"
    )


def test_what_an_extra_needs_is_needed_too() -> None:
    needing = wheel("shoal-environment-echoes", {"echoes_env.py": ""}, requires=["echo-words[loud]"])
    words = wheel("echo-words", PLAIN, requires=["louder-words>=2; extra == 'loud'", "no-words; extra == 'quiet'"])
    assert refused_together(needing, words).startswith(
        "package shoal-environment-echoes 1.0: needs louder-words>=2; extra == "
    )
    check_together([read_wheel(each, "x") for each in (needing, words, wheel("louder-words", {}, version="2.0"))])
    own = wheel("echo-words", PLAIN, requires=["httpx[http2]"])
    assert refused_together(own).startswith("package echo-words 1.0: needs h2")


def test_what_shoal_has_is_a_dependency_that_is_there_and_nothing_to_bring() -> None:
    version = own_packages()["pydantic"]
    check_together(
        [read_wheel(wheel("echo-words", PLAIN, requires=["pydantic>=2", "colorama; sys_platform=='win32'"]), "x")]
    )
    assert f"needs pydantic<2, and there is pydantic {version}" in refused_together(
        wheel("echo-words", PLAIN, requires=["pydantic<2"])
    )
    assert refused_together(wheel("Pydantic", {"other.py": ""}, version="9.9")) == (
        f"package Pydantic 9.9: Shoal has pydantic {version} itself: leave it out of packages"
    )


@pytest.mark.parametrize(
    ("file", "holder"),
    [("json/__init__.py", "Python"), ("shoal/evil.py", "Shoal"), ("pydantic/__init__.py", "pydantic")],
)
def test_a_module_that_shoal_has_is_refused(file: str, holder: str) -> None:
    name = file.partition("/")[0]
    assert refused_together(wheel("echo-words", {file: ""})) == (
        f"package echo-words 1.0: brings a module {name!r}, which {holder} has: rename it"
    )


def test_the_name_of_an_environment_of_shoals_is_refused() -> None:
    points = POINT.replace("echoes =", "arithmetic =")
    words = "lists the environment 'arithmetic', which is one of Shoal's own: rename it"
    assert words in refused_together(wheel("echo-words", PLAIN, points=points))


def test_two_packages_may_not_list_one_environment() -> None:
    other = wheel("other-words", {"other_words.py": ""}, points=POINT.replace("echoes_env", "other_words"))
    assert refused_together(echoes(), echo_words(), other) == (
        "package other-words 1.0: lists the environment 'echoes', which package shoal-environment-echoes 1.0 lists too"
    )


def test_environments_are_read_as_python_reads_them() -> None:
    indented = POINT + "  more = echoes_env:More\n# comment\n[console_scripts]\nsay = echoes_env:say\n"
    assert read_wheel(echoes(points=indented), "x").environments == ("echoes", "more")
    assert "its entry points are wrong: 'echoes' is listed twice" in refused(echoes(points=POINT + "echoes = a:B\n"))
    for line in ("no value\n", "echoes2 = not a module\n"):
        assert refused(echoes(points=POINT + line)).startswith("package x: its entry points are wrong: ")


@pytest.mark.parametrize("folder", ["other.egg-info", "other.DIST-INFO"])
def test_a_second_folder_of_metadata_is_refused(folder: str) -> None:
    assert "a second folder of metadata" in refused(wheel("echo-words", {**PLAIN, f"{folder}/entry_points.txt": POINT}))


def test_a_file_with_the_name_of_shoals_own_list_is_refused() -> None:
    assert refused(wheel("echo-words", {**PLAIN, "shoal-packages.json": "[]"})) == (
        "package x: holds 'shoal-packages.json', which Shoal writes itself: rename it"
    )


def test_two_packages_may_not_bring_one_file() -> None:
    assert refused_together(echo_words(), wheel("other-words", PLAIN)) == (
        "package other-words 1.0: brings 'echo_words.py', which package echo-words 1.0 brings too"
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"requires": ["two words"]}, "package echo-words 1.0: its metadata is wrong: "),
        (
            {"requires": ["x; python_version < 'a.b.c' and os_name ~= 'x'"]},
            "package echo-words 1.0: its metadata is wrong: ",
        ),
        ({"requires": [f"x>={'9' * 5000}"]}, "package echo-words 1.0: its metadata is wrong: "),
    ],
    ids=["requirement", "marker", "number"],
)
def test_metadata_that_nobody_can_read_is_told(changes: dict[str, list[str]], words: str) -> None:
    assert refused_together(wheel("echo-words", PLAIN, **changes)).startswith(words)


@pytest.mark.parametrize(
    ("name", "version"),
    [("\x1b[31mred", "1.0"), ("a" * 200, "1.0"), ("echo-words", "one")],
    ids=["sign", "long", "version"],
)
def test_a_name_or_version_that_is_none_is_told(name: str, version: str) -> None:
    assert refused(wheel(name, PLAIN, version=version)).startswith("package x: ")


def test_a_package_may_be_named_once() -> None:
    newer = wheel("Echo_Words", {"other_words.py": ""}, version="2.0")
    assert refused_together(echo_words(), newer) == (
        "package echo-words 1.0: is named twice; one version of each package is on the path"
    )


def test_a_dependency_at_an_address_is_refused() -> None:
    line = "echo-words @ https://example.invalid/echo.whl"
    assert "needs echo-words from an address, which nobody can pin" in refused_together(
        wheel("shoal-environment-echoes", PLAIN, requires=[line])
    )
