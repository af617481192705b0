"""The orchestrator's looks at discovery's book: newcomers first, all that wait an answer a round, whatever a flood or a clock does."""

from pathlib import Path

import pytest
from discovery_book import Book, known
from test_invitations import POOLS

from run_states import Orchestrator
from servers import Redis
from shoal.crypto.keys import PrivateKey
from shoal.orchestrator.nodes import inviting


@pytest.fixture
def run(tmp_path: Path, redis_server: Redis) -> Orchestrator:
    return Orchestrator(tmp_path, redis_server.url, pools=POOLS)


def test_a_look_at_newcomers_asks_only_for_what_has_come_since(run: Orchestrator, book: Book) -> None:
    now = 100.0
    inviter = book.inviter(lambda: now)
    for _ in range(9):
        book.register(PrivateKey.generate().public, "easy")
    at_start = run.clock.now - inviting.SKEW_SECONDS - inviting.OVERLAP_SECONDS
    assert (inviter.round(), book.asked) == (9, [at_start, 0.0])
    book.register(PrivateKey.generate().public, "easy")
    assert (inviter.round(), book.asked[2:]) == (1, [9.0 - inviting.OVERLAP_SECONDS])
    assert inviter.round() == 0
    refused = PrivateKey.generate().public
    book.register(refused, "closed")
    now += inviting.FULL_LOOK_SECONDS
    assert (inviter.round(), book.asked[-1]) == (0, 0.0)
    assert "closed" in known(run, refused).refused


def test_registrations_that_no_one_answer_holds_are_all_looked_at_an_answer_a_round(
    run: Orchestrator, book: Book
) -> None:
    book.rows_of_answer = 2
    inviter = book.inviter()
    for pool in ("closed", "easy", "closed", "easy", "easy"):  # those that are refused stay in the book
        book.register(PrivateKey.generate().public, pool)
    assert [inviter.round() for _ in range(4)] == [1, 1, 1, 0]
    assert book.asked[1::2] == [0.0, 2.0, 4.0]
    assert len(book.asked) == 7, "the look at all has come to its end"


def test_a_newcomer_does_not_wait_for_the_look_at_all(run: Orchestrator, book: Book) -> None:
    """A crowd that no pool takes waits in discovery; a replica that has just begun invites who comes now in its first round."""
    book.rows_of_answer = 2
    for _ in range(9):
        book.register(PrivateKey.generate().public, "closed")
    inviter = book.inviter()
    assert inviter.round() == 0
    book.seen = run.clock.now - inviting.SKEW_SECONDS  # discovery's clock is late
    newcomer = PrivateKey.generate().public
    book.register(newcomer, "easy")
    assert inviter.round() == 1
    assert newcomer in book.invites
    assert book.asked[-1] < 9.0, "the look at all goes on"


def test_the_look_at_all_finds_whom_a_wrong_clock_hid(run: Orchestrator, book: Book) -> None:
    """Discovery's clock is a day late: its time is known once all were looked at, and newcomers are invited at once from then on."""
    inviter = book.inviter()
    book.seen = run.clock.now - 86_400.0
    book.register(PrivateKey.generate().public, "easy")
    assert inviter.round() == 1
    book.register(PrivateKey.generate().public, "easy")
    assert inviter.round() == 1


def test_a_round_that_failed_is_made_again(run: Orchestrator, book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    inviter = book.inviter()
    node = PrivateKey.generate().public
    book.register(node, "easy")
    with monkeypatch.context() as patch:
        patch.setattr(inviting, "make_invite", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            inviter.round()
    assert inviter.round() == 1
    assert book.asked[:2] == book.asked[2:]


def test_a_flood_of_registrations_keeps_no_round_from_its_end(
    run: Orchestrator, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others register before each answer: without a bound the round would go on for as long as they do."""
    book.rows_of_answer = 2
    keys = [PrivateKey.generate().public for _ in range(3)]
    ask = book.call

    def flooded(method: str, *rest: object, **named: object) -> object:
        for key in keys:
            book.register(key, "closed")
        return ask(method, *rest, **named)  # whatever it was given

    book.seen = run.clock.now
    with monkeypatch.context() as flood:
        flood.setattr(book, "call", flooded)
        inviter = book.inviter()
        inviter.round()
        assert len(book.asked) == inviting.MOST_ANSWERS + 1
    newcomer = PrivateKey.generate().public
    book.register(newcomer, "easy")
    assert sum(inviter.round() for _ in range(2)) == 1


def test_a_registration_that_another_discovery_noted_with_an_earlier_time_is_answered(
    run: Orchestrator, book: Book
) -> None:
    node = PrivateKey.generate().public
    book.seen = 1003.0
    book.register(node, "easy")
    assert book.round() == 1
    assert run.beat(node, book.invites[node]) == "Healthy"
    book.seen = 1000.0  # its clock is behind, or was set back
    book.register(node, "easy")
    assert book.round() == 1
    assert book.round() == 0


def test_a_look_at_all_ends_while_a_flood_goes_on_and_the_next_one_begins(
    run: Orchestrator, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More register in a round than an answer holds: who waits at the front is looked at again all the same."""
    now = 100.0
    book.rows_of_answer = 2
    waits = PrivateKey.generate().public
    book.register(waits, "closed")
    book.seen = run.clock.now
    inviter = book.inviter(lambda: now)
    looks = []
    for _ in range(12):
        for _ in range(3):
            book.register(PrivateKey.generate().public, "closed")
        asked = len(book.asked)
        inviter.round()
        looks.append(0.0 in book.asked[asked:])
        now += inviting.FULL_LOOK_SECONDS / 2
    assert sum(looks) >= 3
