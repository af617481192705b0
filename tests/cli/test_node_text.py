"""What a joined machine says while it works: news, each once."""

from shoal.cli.node_text import changes
from shoal.contracts.run import AgentStatus


def status(held: int | None) -> AgentStatus:
    return AgentStatus(
        run="demo", pool="pool", node="ab" * 32, discovery="http://127.0.0.1:1", state="Healthy", held_version=held, written_unix=1.0
    )  # fmt: skip


def test_a_version_is_announced_once_although_its_files_come_and_go() -> None:
    seen, told, before = [], -1, None
    for held in (None, 0, None, 0, None, 0, 2, None, 2):
        now = status(held)
        seen += [line for line in changes(before, now, told) if "weights of version" in line]
        before, told = now, max(told, -1 if held is None else held)
    assert seen == ["downloaded the weights of version 0", "downloaded the weights of version 2"]
