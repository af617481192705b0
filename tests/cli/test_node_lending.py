"""What an owner lends: rates, GPUs by index and UUID, and the systemd unit that joins at every start of the machine."""

import getpass
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from servers import lacking
from shoal import accelerators
from shoal.accelerators import Card, Machine, NoGpu, chosen, visible
from shoal.cli import node_unit
from shoal.cli.main import app
from shoal.cli.node_lending import lending_lines, lending_of, rate, use_gpus
from shoal.contracts.machine import Lending
from shoal.errors import InputWrong

CARDS = (
    Card("NVIDIA L4", 24 << 30, "GPU-a1b2c3d1-52b8-8a76-f3c4-6a6bd2d5a001"),
    Card("NVIDIA H100", 80 << 30, "GPU-a1b2c3d2-52b8-8a76-f3c4-6a6bd2d5a002"),
    Card("NVIDIA L4", 24 << 30, "GPU-a1b2c3d3-52b8-8a76-f3c4-6a6bd2d5a003"),
)
THREE = Machine(CARDS, "580.1", 13)
MOST_EXPOSURE = 3.0
"""systemd's own measure, 10 for a service without any restriction. What is left open is named in `node_unit`."""


@pytest.mark.parametrize(
    ("text", "bits"),
    [("20Mbit", 20_000_000), ("2500 kbit", 2_500_000), ("1.5Gbit/s", 1_500_000_000), ("100mbit", 100_000_000)],
)
def test_rates_are_written_as_tc_writes_them(text: str, bits: int) -> None:
    assert rate(text) == bits


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("20", "does not name a rate"),
        ("20MB", "does not name a rate"),
        ("-5Mbit", "does not name a rate"),
        ("1Mbit", "allowed are 2 Mbit/s to 1000 Gbit/s"),
        ("5000Gbit", "allowed are"),
        ("20Mbit; rm", "does not name a rate"),
    ],
)
def test_a_rate_that_is_none_is_refused_with_what_is_allowed(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        rate(text)


def test_gpus_are_named_by_index_or_by_uuid() -> None:
    assert chosen("0,2", THREE) == [0, 2]
    assert chosen("2, 0", THREE) == [2, 0]
    assert chosen("GPU-a1b2c3d2", THREE) == [1]
    assert chosen(CARDS[2].uuid.upper(), THREE) == [2]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("3", r"'3' is not one of this machine's GPUs: 0 \(NVIDIA L4, GPU-a1b2c3d1"),
        ("GPU-a1b2c3", "is not one"),  # too short
        ("GPU-ffffffff", "is not one"),
        ("0,GPU-a1b2c3d1", "GPU 0 is named twice"),
        ("all", "is not one"),
    ],
)
def test_a_gpu_that_is_not_here_is_refused_with_those_that_are(text: str, said: str) -> None:
    with pytest.raises(NoGpu, match=said):
        chosen(text, THREE)
    with pytest.raises(NoGpu, match="the driver shows none"):
        chosen("0", Machine())


def test_the_node_and_its_processes_see_the_chosen_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerators, "read_machine", lambda: THREE)
    environment: dict[str, str] = {}
    use_gpus(lending_of(None, None, None, "GPU-a1b2c3d3,1"), environment)
    assert environment == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "2,1"}
    assert visible(THREE, environment).cards == (CARDS[2], CARDS[1])
    assert visible(THREE, {}) == THREE
    assert visible(THREE, {"CUDA_VISIBLE_DEVICES": ""}).cards == ()
    assert visible(THREE, {"CUDA_VISIBLE_DEVICES": "1,-1,0"}).cards == (CARDS[1],)  # as CUDA reads it
    with pytest.raises(InputWrong, match="--gpus: '7' is not one"):
        use_gpus(lending_of(None, None, None, "7"), environment)


def test_what_is_lent_is_told_in_words() -> None:
    found = lending_lines(Lending(upload_bits=20_000_000, download_bits=10**9, hours="22:00-07:00", gpus=["0"]))
    assert found[0] == "limits     upload 20 Mbit/s, download 1 Gbit/s"
    assert found[1].startswith("hours      22:00-07:00 (")
    assert found[2] == "GPUs       0"
    assert lending_lines(Lending()) == []


def printed(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["node", "unit", *arguments])
    assert done.exit_code == 0, done.output + str(done.exception)
    return done.stdout


def line(text: str, name: str) -> list[str]:
    return [each.partition("=")[2] for each in text.splitlines() if each.startswith(f"{name}=")]


def test_the_unit_starts_the_join_that_it_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = printed(
        "https://discovery.example.org", "--hours", "22:00-07:00", "--upload-limit=20Mbit", "--gpus", "0,1",
        "--ca-file", "my ca%.pem", "--folder", "node",
    )  # fmt: skip
    [command] = line(text, "ExecStart")
    assert command.startswith(f"{Path(sys.executable).parent}/shoal node join https://discovery.example.org ")
    assert f'--ca-file "{tmp_path}/my ca%%.pem"' in command
    assert f"--folder {tmp_path}/node" in command
    assert "--hours 22:00-07:00" in command
    assert "--bind" not in command  # a default is not written down
    assert line(text, "ReadWritePaths") == [f"{tmp_path}/node"]
    assert line(text, "User") == [getpass.getuser()]
    assert line(text, "Environment")[1] == f"HOME=%S/{line(text, 'StateDirectory')[0]}"  # where compilers keep kernels


def test_what_the_unit_binds_is_there_before_it_starts(tmp_path: Path) -> None:
    folder, key = tmp_path / "share" / "node", tmp_path / "keys" / "node.pem"
    text = printed("https://d.example", "--folder", str(folder), "--key", str(key))
    assert line(text, "ReadWritePaths") == [str(folder), str(key.parent)]
    assert all(stat.S_IMODE(place.stat().st_mode) == 0o700 for place in (folder, key.parent))
    other = CliRunner().invoke(app, ["node", "unit", "https://d.example", "--folder", f"{folder}2", "--user", "me"])
    assert f"me must make {folder}2 before the unit starts" in other.stderr
    assert not Path(f"{folder}2").exists()


def test_of_the_homes_a_unit_sees_the_installation_and_the_nodes_folder_alone() -> None:
    place = "/ho" + "me/"
    text = node_unit.unit(
        {"url": "https://d.example", "folder": Path(f"{place}me/node")},
        {"url": "", "folder": "--folder"},
        "me",
        [Path(f"{place}me/shoal/.venv"), Path("/usr"), Path(f"{place}me/shoal"), Path(f"{place}me/shoal/workloads")],
    )
    assert line(text, "BindReadOnlyPaths") == [f"{place}me/shoal"]
    assert line(text, "BindPaths") == [f"{place}me/node"]
    assert line(text, "ProtectHome") == ["tmpfs"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("https://d.example", "--invite-code", "ab" * 32), "everybody can read: give --invite-code-file"),
        (("https://d.example", "--hours", "9-5"), "--hours"),
        (("https://d.example\nExecStartPre=/bin/evil",), "cannot stand in a unit"),
        (("https://d.example", "--user", "me\nExecStartPre=x"), "is not the name of a user"),
        (("https://d.example", "--folder", "/srv/a b"), "choose a path without spaces"),
        (("https://d.example", "--hour", "1"), "No such option"),
        ((), "Missing argument"),
    ],
)
def test_what_cannot_stand_in_a_unit_is_refused(arguments: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(app, ["node", "unit", *arguments])
    assert done.exit_code != 0
    assert said in done.output + str(done.exception)


def test_systemd_takes_the_unit_and_finds_it_closed(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        lacking("systemd-analyze", "Debian package systemd")
    file = tmp_path / "shoal-node.service"
    file.write_text(printed("https://discovery.example.org", "--hours", "22:00-07:00", "--folder", str(tmp_path / "n")))
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(file)], capture_output=True, text=True, timeout=60
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
    rated = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", f"--threshold={MOST_EXPOSURE * 10:.0f}", str(file)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert rated.returncode == 0, rated.stdout + rated.stderr
