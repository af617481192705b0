"""Rounds of islands that meet at a real lighthouse and speak over real sockets, as threads of one process."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
import structlog
import torch
from island_crowd import ALONE, HOST, KEYS, KNOWN, RUN, SETTINGS, Crowd, known

from samples import ISLAND_SHARED_TERMS
from shoal.contracts.islands import IslandNotice
from shoal.islands.island import Island
from shoal.islands.lighthouse import main, serve
from shoal.islands.members import Members
from shoal.islands.setting import Exchanged, IslandPlace, IslandSettings


@pytest.fixture
def crowd() -> Iterator[Crowd]:
    made = Crowd()
    yield made
    made.close()


@pytest.fixture
def impatient() -> Iterator[Crowd]:
    """For deaths: the lighthouse misses the dead soon."""
    made = Crowd(wait_seconds=3.0, silence_seconds=4.0)
    yield made
    made.close()


def together(crowd: Crowd, count: int, settings: IslandSettings = SETTINGS) -> list[Island]:
    """Islands that have met once and share a vector of ones. They are all that the run has, unless it was said before how many those are."""
    if crowd.known is KNOWN:
        crowd.known = known(count)
    islands = [crowd.island(index, torch.ones(1000), settings) for index in range(count)]
    deadline = time.monotonic() + 150

    def meet_all(island: Island) -> None:
        while (met := island.join()) is None or len(met.islands) < count:
            assert time.monotonic() < deadline, "the islands did not all meet"

    crowd.all(meet_all)
    return islands


def learn(crowd: Crowd, **values: float) -> None:
    for name, value in values.items():
        crowd.parameters[name.replace("_", "-")].fill_(value)


def same_on(crowd: Crowd, *names: str) -> bool:
    """Whether parameters and shared states are the same bits."""
    chosen = names or tuple(crowd.islands)
    digests = {crowd.islands[name].shared.digest() for name in chosen}
    first = crowd.parameters[chosen[0]]
    return len(digests) == 1 and all(torch.equal(crowd.parameters[name], first) for name in chosen)


def test_golden_round_of_two_islands(crowd: Crowd) -> None:
    together(crowd, 2)
    learn(crowd, island_0=0.9, island_1=0.8)
    said = crowd.exchange()
    assert [one and one.contributors for one in said] == [["island-0", "island-1"]] * 2
    assert crowd.parameters["island-0"].tolist() == pytest.approx([0.8005] * 1000, abs=1e-4)
    assert same_on(crowd)


def test_a_joiner_copies_the_shared_state_and_contributes_nothing_to_its_first_round(crowd: Crowd) -> None:
    crowd.known = known(3)
    islands = together(crowd, 2)
    learn(crowd, island_0=0.9, island_1=0.8)
    crowd.exchange()
    joiner = crowd.island(2, torch.ones(1000))
    learn(crowd, island_0=0.7, island_1=0.7, island_2=50.0)

    def act(island: Island) -> Exchanged | None:
        if island is joiner:
            return island.join()
        deadline = time.monotonic() + 60  # the others come once the joiner waits
        while not joiner_waits() and time.monotonic() < deadline:
            time.sleep(0.05)
        return island.exchange(9)

    def joiner_waits() -> bool:
        return any(thread.name == "island-meet" for thread in threading.enumerate())

    said = crowd.all(act)
    assert [one.joined for one in said] == [False, False, True]
    assert {tuple(one.contributors) for one in said} == {("island-0", "island-1")}
    assert [one.position for one in said] == [9, 9, 9]
    assert same_on(crowd)
    learn(crowd, island_0=0.5, island_1=0.5, island_2=0.5)
    assert {tuple(one.contributors) for one in crowd.exchange() if one} == {("island-0", "island-1", "island-2")}
    assert same_on(crowd)
    assert islands[0].shared.meta.round == 3


def test_an_island_that_turns_its_vector_round_is_left_out_with_a_reason(crowd: Crowd) -> None:
    together(crowd, 3)
    learn(crowd, island_0=0.9, island_1=0.9, island_2=100.0)
    said = crowd.exchange()
    for one in said:
        assert one is not None
        assert one.contributors == ["island-0", "island-1"]
        assert "agreement -1.000: counts 0.00" in one.left_out["island-2"]
    assert crowd.parameters["island-2"].tolist() == pytest.approx([1 - 0.7 * 0.19] * 1000, abs=1e-4)
    assert same_on(crowd)


def test_what_is_not_finite_is_not_contributed_and_its_island_goes_on_with_the_others(crowd: Crowd) -> None:
    together(crowd, 2)
    learn(crowd, island_0=0.9, island_1=float("nan"))
    said = crowd.exchange()
    assert [one and one.contributors for one in said] == [["island-0"]] * 2
    assert same_on(crowd)


def test_survivors_go_on_without_an_island_that_is_gone(impatient: Crowd) -> None:
    islands = together(impatient, 3)
    islands[0].close()  # the first: the meeting's store was its
    learn(impatient, island_1=0.9, island_2=0.8)
    names = ["island-1", "island-2"]
    impatient.exchange_until(islands[1:], lambda said: all(one and one.islands == names for one in said))
    assert same_on(impatient, *names)


def test_the_last_of_two_goes_on_alone(impatient: Crowd) -> None:
    islands = together(impatient, 2)
    islands[1].close()
    learn(impatient, island_0=0.9)
    (said,) = impatient.exchange_until(islands[:1], lambda said: said[0] is not None)
    assert said.contributors == ["island-0"]
    assert impatient.parameters["island-0"].tolist() == pytest.approx([1 - 0.7 * 0.19] * 1000, abs=1e-4)


@pytest.mark.soak
def test_without_a_lighthouse_training_goes_on_and_islands_meet_again_at_the_next_one(crowd: Crowd) -> None:
    islands = together(crowd, 2, replace(SETTINGS, wait_seconds=1.5, connect_seconds=4.0))
    crowd.lighthouse.shutdown()
    learn(crowd, island_0=0.95, island_1=0.9)
    assert crowd.exchange() == [None, None]
    assert crowd.parameters["island-0"][0] == pytest.approx(0.95)
    crowd.lighthouse = serve(HOST, crowd.port, 60.0, 60.0)
    names = ["island-0", "island-1"]
    crowd.exchange_until(islands, lambda said: all(one and one.islands == names for one in said))
    assert same_on(crowd)
    assert islands[0].shared.meta.round > 0, "what was learnt meanwhile is part of no round"


def test_an_island_that_comes_alone_knows_that_nobody_else_is_training(crowd: Crowd) -> None:
    crowd.known = known(3)  # of which one alone can make no round
    alone = crowd.island(0, torch.ones(5), replace(SETTINGS, join_seconds=2.0))
    assert alone.last.company, "nobody has looked yet"
    assert alone.join() is None
    assert not alone.last.company


def test_a_lighthouse_that_is_killed_is_not_heard_any_more_nor_waited_for_long() -> None:
    command = [sys.executable, "-m", "shoal.islands.lighthouse", HOST, "0", "10"]
    lighthouse = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert lighthouse.stdout is not None
        port = lighthouse.stdout.readline().strip().rpartition(":")[2]
        members = Members(f"http://{HOST}:{port}", RUN, "island-0", KEYS["island-0"], known(2), 10.0)
        assert not members.heard
        members.start()
        deadline = time.monotonic() + 90
        while not members.heard:
            assert time.monotonic() < deadline, "the lighthouse took no sign of life"
            time.sleep(0.05)
    finally:
        lighthouse.kill()
        lighthouse.wait()
    while members.heard:
        assert time.monotonic() < deadline, "a lighthouse that is gone is still heard"
        time.sleep(0.05)
    waited = []
    for _ in range(2):
        began = time.monotonic()
        notice = IslandNotice(
            run=RUN,
            island="island-0",
            round=0,
            digest="0" * 64,
            live=True,
            store="127.0.0.1:1",
            terms=ISLAND_SHARED_TERMS,
            at_unix=time.time(),
        )
        with structlog.testing.capture_logs() as logs:
            assert members.meet(notice, began + 600.0, lambda: None).meeting is None
        assert "does not answer" in logs[-1]["reason"]
        waited.append(time.monotonic() - began)
    assert max(waited) < 300.0, "a lighthouse that is gone was waited for as long as islands are"
    assert waited[1] < waited[0], "what is known to be gone is waited for anew"
    members.stop()


def test_an_island_with_a_key_that_the_others_do_not_know_it_by_is_refused(crowd: Crowd) -> None:
    place = IslandPlace(RUN, "island-0", KEYS["island-1"], KNOWN, f"http://{HOST}:{crowd.port}", HOST)
    with pytest.raises(ValueError, match="does not hold the key that the others expect"):
        Island(place, SETTINGS, ALONE, {"weight": torch.ones(3)})


def test_a_stop_is_heard_while_an_island_waits(crowd: Crowd) -> None:
    class Stopped(Exception):
        pass

    place = IslandPlace(RUN, "island-0", KEYS["island-0"], KNOWN, "http://127.0.0.1:9", HOST)
    asked = threading.Event()

    def beat() -> None:
        asked.set()
        raise Stopped

    island = Island(place, SETTINGS, ALONE, {"weight": torch.ones(3)}, beat)
    with pytest.raises(Stopped):
        island.exchange(1)
    assert asked.is_set()
    island.close()


@pytest.mark.parametrize("arguments", [[], ["127.0.0.1"], ["127.0.0.1", "x"], ["127.0.0.1", "1", "y"]])
def test_the_lighthouse_says_what_it_wants(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="PORT"):
        main(arguments)


def test_a_saved_state_is_taken_up_again(crowd: Crowd) -> None:
    (island,) = together(crowd, 1)
    learn(crowd, island_0=0.9)
    island.exchange(5)
    again = Island(
        IslandPlace(RUN, "island-0", KEYS["island-0"], crowd.known, f"http://{HOST}:{crowd.port}", HOST),
        SETTINGS,
        ALONE,
        {"weight": torch.full((1000,), 0.25)},
    )
    again.restore(island.shared, island.certificate)
    assert again.shared.digest() == island.shared.digest()
    assert again.position == 5
    assert again._parameters.read()[0] == 0.25, "what was learnt since the round is gone"
    again.close()
    short = replace(island.shared)
    short.momentum = torch.zeros(3)  # a file may say so; types are held while tests run where a state is made
    with pytest.raises(ValueError, match="momentum of 3 values; this rank has 1000"):
        again.restore(short, island.certificate)


def test_an_island_keeps_its_weights_when_a_corrected_key_voids_what_vouched_for_them(crowd: Crowd) -> None:
    survivor, gone = together(crowd, 2)
    learn(crowd, island_0=0.9, island_1=0.8)
    crowd.exchange()
    survivor.close()
    gone.close()
    corrected = known(2) | {"island-1": KEYS["island-2"].public}
    hurried = replace(SETTINGS, join_seconds=10.0)
    islands = []
    for name, key in (("island-0", KEYS["island-0"]), ("island-1", KEYS["island-2"])):
        place = IslandPlace(RUN, name, key, corrected, f"http://{HOST}:{crowd.port}", HOST)
        crowd.parameters[name] = torch.ones(1000)
        crowd.islands[name] = Island(place, hurried, ALONE, {"weight": crowd.parameters[name]})
        islands.append(crowd.islands[name])
    islands[0].restore(survivor.shared, survivor.certificate)
    crowd.parameters["island-0"].fill_(0.25)
    with structlog.testing.capture_logs() as logs:
        said = crowd.all(lambda island: island.join(), islands)
    assert said[0] is None
    assert crowd.parameters["island-0"].unique().tolist() == [0.25]
    assert islands[0].shared.digest() == survivor.shared.digest()
    assert any(
        "key of an island was changed" in line.get("reason", "") for line in logs if line["log_level"] == "error"
    )


def test_a_restart_of_all_islands_keeps_what_was_learnt_since_the_round(crowd: Crowd) -> None:
    islands = together(crowd, 2)
    learn(crowd, island_0=0.9, island_1=0.8)
    crowd.exchange()
    again = []
    for index, island in enumerate(islands):
        island.close()
        again.append(crowd.island(index, torch.ones(1000)))
        crowd.parameters[f"island-{index}"].fill_(0.5 + index / 8)
        again[-1].restore(island.shared, island.certificate)
    deadline = time.monotonic() + 150

    def meet(island: Island) -> None:
        while (met := island.join()) is None or len(met.islands) < 2:
            assert time.monotonic() < deadline, "the islands did not meet again"

    crowd.all(meet, again)
    assert [crowd.parameters[f"island-{index}"].unique().tolist() for index in range(2)] == [[0.5], [0.625]]
    said = crowd.exchange(again)
    assert [one and one.contributors for one in said] == [["island-0", "island-1"]] * 2, "it is part of the next round"
    assert same_on(crowd)


def test_parameters_that_are_not_finite_go_back_to_the_shared_state_though_nobody_contributes(crowd: Crowd) -> None:
    together(crowd, 2)
    learn(crowd, island_0=float("nan"), island_1=float("inf"))
    assert [one and one.contributors for one in crowd.exchange()] == [[], []]
    assert crowd.parameters["island-0"].unique().tolist() == [1.0]
    assert same_on(crowd)
