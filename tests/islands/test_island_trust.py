"""What an island says of its state and of a round is believed only with the signatures of others; one voice an island; waits end."""

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from island_crowd import HOST, KEYS, RUN, SETTINGS, Crowd, known

from samples import ISLAND_SHARED_TERMS
from shoal.contracts.islands import CertificateLink, IslandAgreement, IslandContribution, IslandNotice
from shoal.contracts.signed import sign
from shoal.islands.certificate import BadCertificate, check, count_votes, extended
from shoal.islands.contributions import Received, padded
from shoal.islands.encoding import encode
from shoal.islands.group import RejoinableGroup, Unreachable
from shoal.islands.head import NoHead, head_of
from shoal.islands.island import MeetingStore
from shoal.islands.judgement import judge_parts, part_of
from shoal.islands.outer import OuterSettings
from shoal.islands.setting import IslandSettings

BASE = "0"


def named(letters: str) -> list[str]:
    """`abc` are islands 0, 1 and 2."""
    return [f"island-{ord(letter) - ord('a')}" for letter in letters]


def link(members: str, number: int, state: str, signers: str | None = None) -> CertificateLink:
    """The agreement of `members` on a state, signed by some of them, or all."""
    agreement = IslandAgreement(
        run=RUN, meeting="1-2-3", round=number, digest=state * 64, members=sorted(named(members))
    )
    signatures = {
        name: sign(agreement, KEYS[name]).signature for name in named(members if signers is None else signers)
    }
    return CertificateLink(agreement=agreement, signatures=signatures)


def notice(
    island: str, number: int, state: str, certificate: Sequence[CertificateLink] = (), **said: Any
) -> IslandNotice:
    return IslandNotice(
        run=RUN, island=named(island)[0], round=number, digest=state * 64, terms=ISLAND_SHARED_TERMS, store="127.0.0.1:1",
        certificate=list(certificate), live=said.get("live", True), refuses=said.get("refuses", []),
        holds=said.get("holds", []), at_unix=said.get("at_unix", 0.0),
    )  # fmt: skip


def started(island: str) -> IslandNotice:
    return notice(island, 0, BASE, live=False)


def head_among(*notices: IslandNotice, islands: int = 3) -> Any:
    return head_of(notices, RUN, known(islands), BASE * 64)


# ---- certificates


def test_one_island_of_three_cannot_have_the_others_copy_a_state_that_it_made_up() -> None:
    liar = notice("a", 9, "e", [link("a", 9, "e")])
    head = head_among(liar, started("b"), started("c"))
    assert (head.round, head.digest) == (0, BASE * 64)
    assert (head.joiners, head.ahead, head.members) == ([], named("a"), named("bc"))


def test_a_key_that_was_changed_makes_nobody_copy_the_base_model() -> None:
    """`b` was made anew, with another key and at round 0; what it signed before vouches for `a` no more."""
    chain = [link("ab", 12, "c")]
    corrected = known(2) | {"island-1": KEYS["island-2"].public}
    head = head_of([notice("a", 12, "c", chain), started("b")], RUN, corrected, BASE * 64)
    assert (head.round, head.holders, head.joiners, head.ahead) == (0, named("b"), [], named("a"))


def test_a_survivor_of_islands_that_died_one_after_the_other_is_believed_by_all_that_come_back() -> None:
    chain = [link("bc", 5, "5"), link("c", 8, "8")]
    head = head_among(started("a"), started("b"), notice("c", 8, "8", chain))
    assert (head.round, head.holders, head.joiners) == (8, named("c"), named("ab"))
    assert head.before == named("c")


def test_an_old_state_with_all_signatures_does_not_take_restarted_islands_back() -> None:
    old, newer = [link("abc", 5, "5")], [link("abc", 10, "a", "bc")]
    head = head_among(
        notice("a", 5, "5", old), notice("b", 10, "a", newer, live=False), notice("c", 10, "a", newer, live=False)
    )
    assert (head.round, head.holders) == (10, named("bc"))


@pytest.mark.parametrize(
    ("chain", "why"),
    [
        ([], "no island signed the state"),
        ([link("abc", 4, "d", "a")], "1 of 3 signed"),
        ([link("a", 4, "d")], "too few of the 3 previous members"),
        ([link("ab", 3, "c"), link("abc", 3, "d")], "round 3 after 3"),
        ([link("abc", 4, "c")], "another state"),
        ([link("abc", 3, "d")], "another state"),
        ([link("abd", 4, "d")], "not islands of this run"),
        ([link("ab", 4, "d", "abc")], "signed but did not take part"),
        (
            [link("abc", 4, "d").model_copy(update={"signatures": link("abc", 4, "c").signatures})],
            "does not fit the document",
        ),
    ],
)
def test_a_certificate_that_vouches_for_nothing_says_why(chain: list[CertificateLink], why: str) -> None:
    with pytest.raises(BadCertificate, match=why):
        check(chain, RUN, 4, "d" * 64, known(3))
    with pytest.raises(NoHead, match="most islands of its round signed"):
        head_among(notice("a", 4, "d", chain))


def test_a_certificate_is_as_short_as_it_can_be() -> None:
    names = known(4)
    chain: list[CertificateLink] = []
    for number, members in enumerate(["abcd", "abcd", "ab", "a", "ab", "a", "abc"], 1):
        longer = extended(chain, link(members, number, "d"), names)
        assert longer is not None
        chain = longer
        check(chain, RUN, number, "d" * 64, names)
        assert len(chain) <= 2
    assert len(chain) == 1
    assert extended(chain, link("a", 9, "d"), names) is None


# ---- the head


def test_the_state_that_most_have_is_the_head_and_the_rest_copy_it() -> None:
    chain = [link("abc", 4, "a", "ac")]
    lone = [link("ab", 3, "c"), link("b", 9, "b")]
    head = head_among(notice("c", 4, "a", chain), notice("a", 4, "a", chain), notice("b", 9, "b", lone))
    assert (head.round, head.holders, head.joiners) == (4, named("ac"), named("b"))


def test_where_all_are_restarted_the_newest_state_is_the_head() -> None:
    older, newer = [link("ab", 3, "3")], [link("ab", 3, "3"), link("b", 4, "4")]
    head = head_among(notice("a", 3, "3", older, live=False), notice("b", 4, "4", newer, live=False), islands=2)
    assert (head.round, head.holders) == (4, named("b"))


def test_restarted_islands_do_not_outvote_a_newer_state_that_two_signed() -> None:
    older, newer = [link("abc", 11, "b")], [link("abc", 12, "c")]
    restarted = [notice(name, 11, "b", older, live=False) for name in "bc"]
    head = head_among(notice("a", 12, "c", newer, live=False), *restarted)
    assert (head.round, head.holders, head.joiners) == (12, named("a"), named("bc"))


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("chain", [[link("ab", 12, "c")], [link("ab", 3, "3"), link("a", 12, "c")]], ids=["two", "one"])
def test_islands_that_start_for_the_first_time_take_nobody_back(chain: list[CertificateLink], live: bool) -> None:
    """Of four two trained; one of them is started again, and the others come for the first time, or have begun without it from the base model."""
    trained = notice("a", 12, "c", chain, live=False)
    fresh = [notice(name, 0, BASE, live=live) for name in "cd"]
    begun = [notice(name, 1, "1", [link("cd", 1, "1")], live=live) for name in "cd"]
    for others in (fresh, begun):
        head = head_among(trained, *others, islands=4)
        assert (head.round, head.holders, head.joiners, head.ahead) == (12, named("a"), named("cd"), [])


def test_without_a_majority_the_newest_state_is_the_head_and_all_see_the_same() -> None:
    notices = [notice("a", 4, "b", [link("a", 4, "b")]), notice("b", 4, "a", [link("b", 4, "a")])]
    assert head_among(*notices, islands=2) == head_among(*notices[::-1], islands=2)
    assert head_among(*notices, islands=2).holders == named("b")


def test_holders_take_turns_as_sources() -> None:
    chain = [link("abcde", 4, "a")]
    head = head_among(
        notice("a", 4, "a", chain), notice("b", 4, "a", chain), *(started(name) for name in "cde"), islands=5
    )
    assert [head.source_of(name) for name in named("cde")] == named("aba")


def test_whoever_most_holders_refuse_is_left_out_and_one_refusal_of_three_is_not_enough() -> None:
    chain = [link("abcd", 4, "a")]
    holders = [notice(name, 4, "a", chain, refuses=named("d") if name == "a" else []) for name in "abc"]
    assert head_among(*holders, started("d"), islands=4).members == named("abcd")
    holders[1] = notice("b", 4, "a", chain, refuses=named("cd"))
    head = head_among(*holders, started("d"), islands=4)
    assert (head.members, head.refused) == (named("abc"), named("d"))


# ---- votes


def test_votes_make_a_link_when_most_came_to_the_same_and_the_others_are_named() -> None:
    mine, other = (link("abc", 4, state).agreement for state in "de")
    votes = [sign(mine, KEYS[name]).to_json() for name in named("ab")]
    made, against = count_votes(
        mine, [padded(vote, 4096) for vote in [*votes, sign(other, KEYS["island-2"]).to_json()]], known(3)
    )
    assert made is not None
    check([made], RUN, 4, "d" * 64, known(3))
    assert against == {"island-2": "reached another state"}
    forged = [padded(votes[0], 4096), padded(votes[0], 4096), padded(b"\xff{", 4096)]
    made, against = count_votes(mine, forged, known(3))
    assert made is None
    assert against == {"island-1": "no vote: BadSignature", "island-2": "no vote: ValidationError"}


@pytest.fixture
def trust_crowd() -> Iterator[Crowd]:
    made = Crowd(wait_seconds=4.0)
    made.known = known(3)
    yield made
    made.close()


def meet(crowd: Crowd, count: int, settings: IslandSettings = SETTINGS) -> list[Any]:
    islands = [crowd.island(index, torch.ones(100), settings) for index in range(count)]
    deadline = time.monotonic() + 100
    while not all(one and len(one.islands) == count for one in crowd.all(lambda island: island.join())):
        assert time.monotonic() < deadline, "the islands did not all meet"
    return islands


def test_one_that_comes_to_another_state_is_left_out_and_the_round_is_made(trust_crowd: Crowd) -> None:
    short = replace(SETTINGS, wait_seconds=20.0, connect_seconds=30.0)
    islands = [trust_crowd.island(index, torch.ones(100), short) for index in range(2)]
    islands.append(
        trust_crowd.island(
            2,
            torch.ones(100),
            replace(short, wait_seconds=5.0, connect_seconds=10.0, outer=OuterSettings(learning_rate=0.1)),
        )
    )
    while not all(one and len(one.islands) == 3 for one in trust_crowd.all(lambda island: island.join())):
        pass
    for vector in trust_crowd.parameters.values():
        vector.fill_(0.9)
    first, second, liar = trust_crowd.exchange()
    assert first is not None
    assert second is not None
    assert first.round == second.round == 1
    assert first.left_out == second.left_out == {"island-2": "reached another state"}
    assert liar is None
    assert islands[0].shared.digest() == islands[1].shared.digest()
    assert sorted(islands[0].certificate[0].signatures) == ["island-0", "island-1"]


def test_no_round_is_made_that_the_others_would_not_believe(trust_crowd: Crowd) -> None:
    alone = trust_crowd.island(0, torch.ones(100), replace(SETTINGS, join_seconds=2.0))
    assert alone.join() is None
    trust_crowd.parameters["island-0"].fill_(0.9)
    assert alone.exchange(1) is None
    assert trust_crowd.parameters["island-0"][0] == pytest.approx(0.9), "what it learnt is gone"


# ---- one voice


def test_an_island_that_says_one_thing_to_one_rank_and_another_to_the_next_does_not_count() -> None:
    def received(island: int, rank: int, position: int) -> Received:
        header = IslandContribution(
            run=RUN, island=f"island-{island}", meeting="1-2-3", round=0, rank=rank, contributes=True,
            sha256="0" * 64, inner_seconds=1.0, position=position,
        )  # fmt: skip
        return Received(f"island-{island}", header, encode(torch.ones(8), "float32"))

    ranks = [[received(0, rank, 7), received(1, rank, 7), received(2, rank, 7 + rank)] for rank in range(2)]
    parts = [part_of(each, 8, "float32") for each in ranks]
    judged = [judge_parts(parts, each, None) for each in ranks]
    assert judged[0] == judged[1]
    assert judged[0].coefficients == {"island-0": 0.5, "island-1": 0.5}
    assert judged[0].problems == {"island-2": "it sends different values to different ranks"}


# ---- waits


def test_a_transfer_ends_at_its_deadline_though_every_piece_comes_in_time() -> None:
    store = MeetingStore(HOST)
    groups = [RejoinableGroup(20.0, 30.0, lambda: None) for _ in range(2)]

    def drip() -> None:
        groups[1].join(store.address, "1-2-3", 0, "island-1", 1, 2)
        for _ in range(5):
            try:
                groups[1].send([torch.zeros(100)], 0, "a piece")
            except Unreachable:
                return  # the other has given up
            time.sleep(0.6)

    sender = threading.Thread(target=drip, daemon=True)
    sender.start()
    groups[0].join(store.address, "1-2-3", 0, "island-0", 0, 2)
    begun = time.monotonic()
    with pytest.raises(Unreachable, match="shared state"):
        groups[0].receive([torch.zeros(100) for _ in range(5)], 1, "shared state", 1.5)
    assert time.monotonic() - begun < 2.9, "it waited for all pieces"
    sender.join(40)
    assert not sender.is_alive()


def test_a_joiner_that_does_not_copy_in_time_is_left_out_of_the_round(trust_crowd: Crowd) -> None:
    settings = replace(SETTINGS, wait_seconds=4.0, connect_seconds=3.0, copy_seconds=2.0)
    islands = meet(trust_crowd, 2, settings)
    for vector in trust_crowd.parameters.values():
        vector.fill_(0.9)
    trust_crowd.exchange()  # the joiner below has something to copy
    stuck, over = threading.Event(), threading.Event()

    def beat() -> None:
        if over.is_set():
            raise Unreachable("the test is over")

    def receive(*_: object) -> None:
        stuck.set()
        over.wait(60)

    joiner = trust_crowd.island(2, torch.ones(100), settings, beat)
    joiner._group.receive = receive  # its network does not deliver

    def wait() -> None:
        with contextlib.suppress(Unreachable):
            joiner.join()

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    deadline = time.monotonic() + 60
    while not any(thread.name == "island-meet" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    trust_crowd.parameters["island-0"].fill_(0.5)
    trust_crowd.parameters["island-1"].fill_(0.5)
    said = trust_crowd.exchange(islands)
    over.set()
    waiting.join(40)
    assert not waiting.is_alive()
    assert stuck.is_set(), "the joiner was not in the first attempt"
    assert [one and one.round for one in said] == [2, 2]
    assert [one and one.islands for one in said] == [["island-0", "island-1"]] * 2
    assert islands[0].shared.digest() == islands[1].shared.digest()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"join_seconds": 600.0}, "join_seconds is 600 s"),
        ({"transfer_seconds": 600.0}, r"copy_seconds \+ transfer_seconds is 840 s"),
        ({"wait_seconds": 240.0}, r"2 \* wait_seconds \+ connect_seconds is 500 s"),
        ({"join_seconds": 0.0}, "more than 0"),
        ({"inner_steps": 0}, "needs an update"),
    ],
)
def test_waits_that_other_ranks_would_not_sit_out_are_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        IslandSettings(**changes)


@pytest.mark.parametrize("field", ["position", "round"])
def test_a_number_that_would_not_fit_the_shared_states_description_is_no_contribution(field: str) -> None:
    said = {
        "run": RUN, "island": "island-0", "meeting": "1-2-3", "round": 1, "rank": 0, "contributes": True,
        "sha256": "0" * 64, "inner_seconds": 1.0, "position": 7,
    }  # fmt: skip
    IslandContribution.model_validate(said)
    with pytest.raises(ValueError, match=field):
        IslandContribution.model_validate(said | {field: 10**600})
