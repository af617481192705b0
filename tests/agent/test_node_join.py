"""`shoal node join`: a stranger's machine comes in, works, is told what it lacks, is restarted, and leaves; real services, a script for a worker."""

import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from joined_machine import Machine

from protocol_stack import RUN, Node, Stack, fill_step, node_config
from samples import DOCUMENTS
from servers import PLAIN, Loopback, wait_until
from shoal import accelerators
from shoal.agent.hardware import detect
from shoal.agent.run_end import why_over
from shoal.cli import node_join
from shoal.cli.node_join import Wishes, ask, check_machine, check_offer, check_room, choose_pool, is_loopback, join
from shoal.cli.node_status import ask_agent, print_status
from shoal.contracts.pools import Admission, EngineSettings, PoolTerms, Requirements
from shoal.contracts.protocol import Hardware, HeartbeatReply
from shoal.contracts.requirements import missing
from shoal.contracts.run import AgentState, JoinOffer, NodeConfig, OpenPool
from shoal.contracts.signed import sign
from shoal.crypto.keys import PrivateKey
from shoal.errors import InputWrong
from shoal.retries import Backoff
from shoal.transport import Unavailable


def test_a_machine_joins_works_shows_its_status_and_leaves_cleanly(
    stack: Stack, new_machine: Callable[..., Machine]
) -> None:
    stack.announce(0)
    machine = new_machine().join(stack)
    wait_until("the machine to work", machine.works, 90)
    assert "trusts only this key from now on" in machine.said()
    for name in ("key/node.pem", "config/node.json"):
        assert stat.S_IMODE(os.stat(machine.home / name).st_mode) == 0o600
    lines: list[str] = []
    print_status(machine.folder, None, lines.append, as_json=False)
    assert "state      Healthy" in lines
    assert any(line.startswith("process    worker running") for line in lines)
    status = ask_agent(machine.home)
    assert status is not None
    pid = status.parts[0].pid
    assert pid is not None
    assert b"SECRET_X" not in Path(f"/proc/{pid}/environ").read_bytes()
    machine.process.terminate() if machine.process else None
    assert machine.ends() == 0
    assert not Path(f"/proc/{pid}").exists()
    assert "left run tiny: 0 files accepted, 0 rejected" in machine.said()


def test_the_worker_of_a_machine_in_a_pool_of_gpus_is_promised_one(
    new_stack: Callable[..., Stack], new_machine: Callable[..., Machine], driver: dict[str, str]
) -> None:
    """Two of them, over which the pool's engines spread the model."""
    engine = EngineSettings(tensor_parallel_size=2)
    asked = Requirements(gpus=2)
    stack = new_stack(pools=[PoolTerms(name="pool", open=True, requirements=asked, engine=engine)])
    stack.announce(0)
    without = new_machine()
    without.variables = driver | {"CUDA_VISIBLE_DEVICES": "1"}
    assert without.join(stack).ends() == 2
    assert "pool 'pool' requires 2 GPUs, the machine has 1" in without.said()
    machine = new_machine()
    machine.variables = driver
    machine.join(stack)
    wait_until("the machine to work", machine.works, 90)
    status = ask_agent(machine.home)
    assert status is not None
    assert b"\0SHOAL_GPUS=2\0" in Path(f"/proc/{status.parts[0].pid}/environ").read_bytes()
    assert NodeConfig.from_json((machine.home / "config" / "node.json").read_bytes()).engine == engine


def offer(stack: Stack, *pools: OpenPool) -> JoinOffer:
    return JoinOffer(
        run=RUN, run_key=stack.config.run_key, roster=stack.config.roster, model_id="tiny-model", pools=list(pools)
    )


def told(action: Callable[[], object]) -> str:
    """What the owner of the machine is told."""
    with pytest.raises(InputWrong) as wrong:
        action()
    return "\n".join(wrong.value.lines)


def test_a_machine_that_lacks_something_is_told_all_of_it_at_once(tmp_path: Path) -> None:
    wanted = Requirements(gpus=9, gpu_types=["H100"], cpus=4, memory_gib=64)
    machine = Hardware(cpus=4, memory_bytes=32 << 30, disk_free_bytes=1 << 40, gpus=1, gpu_type="NVIDIA A100")
    said = told(lambda: check_machine(machine, OpenPool(name="big", requirements=wanted), {}))
    assert said.splitlines() == [
        "pool 'big' requires 9 GPUs, the machine has 1",
        "pool 'big' requires 64 GiB of memory, the machine has 32",
        "pool 'big' requires a GPU of H100, the machine has NVIDIA A100",
    ]


def test_a_machine_without_the_engine_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Hardware(cpus=4, memory_bytes=32 << 30, disk_free_bytes=1 << 40)
    check_machine(machine, OpenPool(name="any"))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    said = told(lambda: check_machine(machine, OpenPool(name="any")))
    assert said.startswith("the inference engine is not installed here: run `make setup`")


def test_a_pool_of_gpus_refuses_an_engine_for_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Hardware(cpus=4, memory_bytes=32 << 30, disk_free_bytes=1 << 40, gpus=1, gpu_type="NVIDIA L4")
    machine = machine.model_copy(update={"gpu_memory_bytes": 23034 << 20})
    for wanted in (Requirements(gpus=1), Requirements(gpu_types=["L4"]), Requirements(gpu_memory_gib=23)):
        said = told(lambda wanted=wanted: check_machine(machine, OpenPool(name="big", requirements=wanted)))
        assert said.startswith(
            "pool 'big' is one of GPUs: the inference engine that is installed here is built for CPUs"
        )
    check_machine(machine, OpenPool(name="any"))
    monkeypatch.setattr(accelerators, "read_software", lambda _: accelerators.Software(13, False, False))
    said = told(lambda: check_machine(machine, OpenPool(name="big", requirements=Requirements(gpus=1))))
    assert said.startswith(
        "pool 'big' is one of GPUs: no GPU can be seen here, 1 wanted"
    )  # /proc lists it, the driver shows none
    cards = (accelerators.Card("NVIDIA L4", 23034 << 20),)
    monkeypatch.setattr(accelerators, "read_machine", lambda: accelerators.Machine(cards, "535.104.05", 12))
    said = told(lambda: check_machine(machine, OpenPool(name="big", requirements=Requirements(gpus=1))))
    assert said == (
        "pool 'big' is one of GPUs: NVIDIA's driver 535.104.05 runs CUDA up to 12, and the packages here need 13: install a newer driver"
    )


def test_memory_of_each_gpu_is_compared_as_its_card_is_sold() -> None:
    machine = Hardware(cpus=4, memory_bytes=32 << 30, disk_free_bytes=1 << 40, gpus=1, gpu_type="NVIDIA H100")
    sold = machine.model_copy(update={"gpu_memory_bytes": 81559 << 20})
    assert missing(sold, Requirements(gpu_memory_gib=80)) == []
    assert missing(sold, Requirements(gpu_memory_gib=81)) == [
        "81 GiB of memory of each GPU, the machine's smallest has 80"
    ]
    assert missing(machine, Requirements(gpu_memory_gib=1)) == [
        "1 GiB of memory of each GPU, what the machine has is not known"
    ]


def test_weights_that_have_no_room_are_told_before_they_are_fetched() -> None:
    machine = Hardware(cpus=4, memory_bytes=32 << 30, disk_free_bytes=100 << 30, gpus=1, gpu_type="NVIDIA L4")
    machine = machine.model_copy(update={"gpu_memory_bytes": 23034 << 20})
    assert told(lambda: check_room("Qwen/Qwen2.5-32B@0123456789", machine)).splitlines() == [
        "two versions of Qwen/Qwen2.5-32B@0123456789 need 128.1 GB of disk, and 107.4 GB are free: give another --folder",
        "Qwen/Qwen2.5-32B@0123456789 has 64.0 GB of weights, and a NVIDIA L4 has 24.2 GB of memory",
    ]
    on_cpu = machine.model_copy(update={"gpus": 0, "gpu_type": "", "gpu_memory_bytes": None})
    assert "and this machine has 34.4 GB of memory" in told(lambda: check_room("Qwen2.5-32B", on_cpu))
    check_room("Qwen/Qwen2.5-1.5B", machine)
    check_room("tiny-model", machine)
    check_room("Qwen/Qwen2.5-14B", machine, gpus=0)  # 28 GB beside a GPU of 24 that stays unused
    assert "and a NVIDIA L4 has 24.2 GB of memory" in told(lambda: check_room("Qwen/Qwen2.5-14B", machine))
    assert "and this machine has 34.4 GB of memory" in told(lambda: check_room("Qwen2.5-32B", machine, gpus=0))
    assert "and 2 x NVIDIA L4 have 48.3 GB of memory" in told(lambda: check_room("Qwen/Qwen2.5-32B", machine, gpus=2))
    check_room("Qwen/Qwen2.5-14B", machine, gpus=2)
    # What lies there from an earlier join is not needed again.
    check_room("Qwen2.5-7B", machine.model_copy(update={"disk_free_bytes": 1 << 30}), held=28 << 30)


def test_the_pool_is_chosen_among_those_that_are_open() -> None:
    one, two = OpenPool(name="one"), OpenPool(name="two")
    assert choose_pool([one], None) == one
    assert choose_pool([one, two], "two") == two
    assert told(lambda: choose_pool([one, two], None)).endswith("open to strangers' machines: one, two")
    assert told(lambda: choose_pool([one], "shut")) == "--pool shut is not open to strangers' machines; open are: one"
    assert "none" in told(lambda: choose_pool([], None))


def test_an_offer_is_held_to_the_runs_key(stack: Stack, tmp_path: Path) -> None:
    good, other, nothing = offer(stack), PrivateKey.generate(), tmp_path / "nothing"
    secure = Wishes("https://discovery.example", tmp_path)
    check_offer(good, secure, nothing)  # HTTPS vouches the first time
    check_offer(good, replace(secure, url="http://discovery.example", run_key=good.run_key), nothing)
    assert "is not HTTPS" in told(lambda: check_offer(good, replace(secure, url="http://discovery.example"), nothing))
    assert "somebody intercepts" in told(lambda: check_offer(good, replace(secure, run_key=other.public), nothing))
    kept = tmp_path / "node.json"
    kept.write_bytes(node_config(stack).to_json())
    check_offer(good, secure, kept)
    forged = good.model_copy(update={"run_key": other.public})
    assert "somebody intercepts" in told(lambda: check_offer(forged, secure, kept))
    assert "not signed with the run key" in told(lambda: check_offer(forged, secure, nothing))


def test_a_server_that_was_joined_before_offers_no_other_run_unless_its_key_is_given(
    stack: Stack, tmp_path: Path
) -> None:
    """Else a changed name would be a way round the key that is kept under the name."""
    wishes = Wishes("https://discovery.example", tmp_path)
    good = offer(stack)
    kept = tmp_path / RUN / "config" / "node.json"
    kept.parent.mkdir(parents=True)
    config = node_config(stack).model_copy(update={"discovery": "https://Discovery.example:443/"})
    kept.write_bytes(config.to_json())
    check_offer(good, wishes, kept)

    thief = PrivateKey.generate()
    roster = good.roster.document.model_copy(update={"run": "other"})
    forged = good.model_copy(update={"run": "other", "run_key": thief.public, "roster": sign(roster, thief)})
    nothing = tmp_path / "other" / "config" / "node.json"
    said = told(lambda: check_offer(forged, wishes, nothing))
    assert f"led to run tiny with run key {good.run_key} before, and now offers run other" in said
    assert "ask its owner for the run key and give it with --run-key HEX" in said
    renamed = good.model_copy(update={"run": "other", "roster": sign(roster, stack.run_key)})
    assert "now offers run other" in told(lambda: check_offer(renamed, wishes, nothing))

    check_offer(forged, replace(wishes, run_key=thief.public), nothing)  # its owner gave the key
    check_offer(forged, replace(wishes, url="https://discovery.other"), nothing)
    nothing.parent.mkdir(parents=True)
    moved = {"run": "other", "run_key": thief.public, "roster": forged.roster, "discovery": wishes.url}
    nothing.write_bytes(config.model_copy(update=moved).to_json())
    check_offer(forged, wishes, nothing)  # and from then on the server is the way to both
    check_offer(good, wishes, kept)


def test_discovery_offers_open_pools_and_no_list_of_who_may_join(
    new_stack: Callable[..., Stack], new_machine: Callable[..., Machine]
) -> None:
    code = "5c" * 32
    public = PrivateKey.from_seed(bytes.fromhex(code)).public
    coded = PoolTerms(name="coded", open=True, admission=Admission(codes=[public]))
    stack = new_stack(pools=[PoolTerms(name="closed"), coded])
    said: list[str] = []
    assert ask(stack.addresses.discovery, None, said.append) == offer(stack, OpenPool(name="coded", codes=True))
    assert "is not the discovery service" in told(lambda: ask(stack.addresses.orchestrator, None, said.append))
    assert "is not the URL" in told(lambda: ask("discovery.example", None, said.append))
    page = httpx.get(f"{stack.addresses.discovery}/", **PLAIN)
    assert page.headers["content-type"].startswith("text/html")
    assert f"shoal node join {stack.addresses.discovery} --pool coded --invite-code-file FILE" in page.text
    assert not any(word in page.text for word in ("closed", public, "<script"))

    without = new_machine().join(stack)
    assert without.ends() == 2
    assert "pool 'coded' needs an invite code: --invite-code-file FILE" in without.said()
    machine = new_machine().join(stack, code=code)
    wait_until("the machine with the code to work", machine.works, 90)
    again = Machine(machine.folder, machine.address).join(stack, code=code)
    assert again.ends() == 2
    assert "another `shoal node join` runs in" in again.said()


def test_a_run_key_that_is_none_is_called_that_and_not_somebody_in_between(tmp_path: Path) -> None:
    wishes = Wishes("http://127.0.0.1:9", tmp_path, run_key="1f2e")
    assert told(lambda: join(wishes, print)).startswith("--run-key is the run's public key: 64 hex digits")


def test_a_url_where_nobody_answers_is_told_with_how_long_and_that_it_goes_on(
    loopback: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_join, "SAY_AGAIN_SECONDS", 1.0)
    monkeypatch.setattr(node_join, "PAUSES", Backoff(1.2, 1.2, lambda: 0.0))
    said: list[str] = []
    with pytest.raises(Unavailable):
        ask(f"http://{loopback.address()}:9", None, said.append, give_up_seconds=2.5)
    assert "does not answer (ConnectError" in said[0]
    assert "tries again until Ctrl-C; is it the run's discovery service?" in said[0]
    assert not any("for 0 s" in line for line in said)
    assert any("has not answered for " in line for line in said[1:])


def test_a_machine_hears_that_the_run_is_complete_ends_its_work_and_goes(
    new_stack: Callable[..., Stack], new_machine: Callable[..., Machine]
) -> None:
    stack = new_stack(steps=1, async_level=0)
    stack.announce(0)
    fill_step(stack, Node(stack).join(), 0)
    stack.announce(1)
    machine = new_machine().join(stack)
    assert machine.ends() == 0
    assert "the run is complete; this machine has nothing left to do" in machine.said()
    status = machine.status()
    assert status is not None
    assert all(part.pid is None or not Path(f"/proc/{part.pid}").exists() for part in status.parts)


def test_after_the_last_version_an_orchestrator_that_is_away_is_waited_for_a_minute_before_it_without_end() -> None:
    state = next(each for each in DOCUMENTS if isinstance(each, AgentState) and each.public is not None)
    assert state.public is not None
    assert state.public.mode == "Train"
    steps = state.public.steps
    going, complete = HeartbeatReply(state="Healthy"), HeartbeatReply(state="Healthy", run_complete=True)

    def said(latest: int, silent_seconds: float) -> str:
        return why_over(going, state.model_copy(update={"latest_version": latest}), 1000.0, 1000.0 + silent_seconds)

    assert said(steps - 1, 10_000.0) == ""
    assert said(steps, 30.0) == ""
    assert "last version is published, and the orchestrator has not answered for 90 s" in said(steps, 90.0)
    assert why_over(complete, state, 1000.0, 1000.0) == "the run is complete"
    assert why_over(None, state, None, 1000.0) == ""


@pytest.mark.parametrize(
    ("url", "ours"),
    {
        "http://127.64.0.2:8081": True,
        "http://[::1]:8081": True,
        "http://localhost:8081": True,
        "http://127.evil.example:8081": False,
        "http://127.0.0.1.evil.example:8081": False,
        "http://localhost.evil.example:8081": False,
        "http://10.0.0.1:8081": False,
    }.items(),
)
def test_only_this_machine_is_believed_over_plain_http_without_a_run_key(url: str, ours: bool) -> None:
    assert is_loopback(url) is ours


def test_a_disk_beyond_what_json_counts_is_told_as_the_largest_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1 << 60))
    assert detect(tmp_path).disk_free_bytes == (1 << 53) - 1
