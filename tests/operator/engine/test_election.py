"""Leader election as a state machine: one leader at most, whatever the clocks of others say."""

from hypothesis import given
from hypothesis import strategies as st

from shoal_operator.engine.election import JITTER, Election, ElectionRecord, ElectionTiming, Move
from shoal_operator.engine.lease import record_of

TIMING = ElectionTiming(duration=14, renew_deadline=11.0, retry=1.5)


def other(version: str = "7", holder: str = "other", duration: float = 14) -> ElectionRecord:
    return ElectionRecord(holder, duration, version)


def test_where_there_is_no_lease_it_is_created() -> None:
    election = Election("me", TIMING)
    election.see(None, 0)
    assert election.move(0) is Move.CREATE
    assert not election.leads(0)


def test_a_lease_that_was_given_back_is_taken_at_once() -> None:
    election = Election("me", TIMING)
    election.see(other(holder=""), 0)
    assert election.move(0) is Move.TAKE


def test_anothers_lease_is_taken_only_when_it_has_not_changed_for_its_duration_as_seen_here() -> None:
    election = Election("me", TIMING)
    election.see(other("7"), 0)
    assert election.move(13.9) is Move.WAIT
    election.see(other("8"), 13.9)  # renewed
    assert election.move(14.1) is Move.WAIT
    election.see(other("8"), 20)  # looked at again, the same
    assert election.move(27.8) is Move.WAIT
    assert election.move(28) is Move.TAKE


def test_the_duration_in_the_lease_counts_not_ones_own() -> None:
    election = Election("me", TIMING)
    election.see(other(duration=60), 0)
    assert election.move(59) is Move.WAIT
    assert election.move(60) is Move.TAKE


def test_a_renewal_holds_from_when_it_was_sent_not_from_when_it_was_answered() -> None:
    election = Election("me", TIMING)
    election.wrote(ElectionRecord("me", 14, "8"), sent_at=10, now=15)
    assert election.leads(20.9)
    assert not election.leads(21)


def test_who_never_led_has_nothing_to_lose() -> None:
    election = Election("me", TIMING)
    election.see(other(), 0)
    assert not election.lost(1000)


def test_a_leader_that_was_not_renewed_in_time_has_lost_before_anyone_else_can_lead() -> None:
    leader, standby = Election("me", TIMING), Election("standby", TIMING)
    leader.wrote(ElectionRecord("me", 14, "8"), sent_at=0, now=0.1)
    standby.see(ElectionRecord("me", 14, "8"), 0.05)
    assert not leader.lost(10.9)
    assert leader.lost(11)
    assert standby.move(14.0) is Move.WAIT


def test_a_leader_that_reads_anothers_name_has_lost_at_once() -> None:
    election = Election("me", TIMING)
    election.wrote(ElectionRecord("me", 14, "8"), sent_at=0, now=0)
    election.see(other("9"), 1)
    assert election.lost(1)


def test_a_refused_renewal_alone_loses_nothing_until_it_is_known_who_wrote() -> None:
    election = Election("me", TIMING)
    election.wrote(ElectionRecord("me", 14, "8"), sent_at=0, now=0)
    election.refused()
    assert not election.lost(1)
    assert election.move(1) is Move.WAIT
    election.see(ElectionRecord("me", 14, "9"), 2)  # it was our own write, whose answer was lost
    assert election.move(2) is Move.RENEW


def test_a_killed_leader_is_followed_within_twenty_seconds() -> None:
    timing = ElectionTiming()
    retry = timing.retry * (1 + JITTER)
    assert timing.duration + 2 * retry + 1 < 20
    assert timing.renew_deadline + 2 < timing.duration
    assert ElectionTiming.of(timing.duration) == timing
    assert ElectionTiming.of(140) == ElectionTiming(140, 110.0, 15.0)


@given(
    renewals=st.lists(st.floats(0.1, 5.0), max_size=12),
    answer_seconds=st.floats(0.0, 3.0),
    first_look=st.floats(0.0, 60.0),
    looks=st.lists(st.floats(0.1, 3.0), min_size=30, max_size=30),
)
def test_two_replicas_never_lead_at_once(
    renewals: list[float], answer_seconds: float, first_look: float, looks: list[float]
) -> None:
    """A leader renews at some times, then dies or hangs; a standby looks now and then. Their clocks share nothing."""
    leader = Election("me", TIMING)
    sent, version, writes = 0.0, 1, []
    for gap in [0.0, *renewals]:
        sent += gap
        version += 1
        writes.append((sent + answer_seconds, ElectionRecord("me", 14, str(version))))
        leader.wrote(writes[-1][1], sent, sent + answer_seconds)
    skew = 12345.0
    standby, now = Election("standby", TIMING), first_look
    for gap in looks:
        now += gap
        seen = [record for at, record in writes if at <= now]
        if not seen:
            continue
        standby.see(seen[-1], now + skew)
        if standby.move(now + skew) is Move.TAKE and now >= writes[-1][0]:
            assert not leader.leads(now)


def test_a_lease_without_fields_is_nobodys_and_over() -> None:
    record = record_of({"metadata": {"resourceVersion": "3"}})
    assert (record.holder, record.duration) == ("", 0.0)
