"""The challenge at the door: who is asked, what passes, and every way to get in without computing."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from protocol_stack import RUN
from run_states import Orchestrator
from servers import Redis
from shoal.agent.capability import show
from shoal.contracts.pools import PoolTerms, Requirements
from shoal.contracts.problems import Refusal
from shoal.contracts.protocol import Challenge, ChallengeAnswer, ChallengeRequest, Invite
from shoal.contracts.signed import Signed, sign
from shoal.crypto import challenge as arithmetic
from shoal.crypto.keys import PrivateKey
from shoal.orchestrator.nodes import capability_check
from shoal.orchestrator.nodes.registry import NodeRecord

GFLOPS = 500
NONCE = "ab" * 16


@pytest.fixture
def run(tmp_path: Path, redis_server: Redis, monkeypatch: pytest.MonkeyPatch) -> Orchestrator:
    # The work itself is tested in tests/contracts/test_challenge.py; here little of it is enough.
    monkeypatch.setattr(capability_check, "plan", lambda gflops: (1, 2, 5.0))
    pools = [PoolTerms(name="pool", open=True, requirements=Requirements(gflops=GFLOPS)), PoolTerms(name="own")]
    return Orchestrator(tmp_path, redis_server.url, pools=pools)


def invited(run: Orchestrator, *, outside: bool | None = True, nonce: str = NONCE, node: str = "") -> Signed[Invite]:
    """A node that was invited as the orchestrator does it."""
    node = node or PrivateKey.generate().public
    invite = run.invite(node).document.model_copy(update={"nonce": nonce})
    run.state.nodes.put(NodeRecord(node=node, state="Invited", pool="pool", outside=outside, invite_nonce=nonce))
    return sign(invite, run.role_keys["orchestrator"])


def ask(run: Orchestrator, node: str) -> Challenge:
    return capability_check.give(run.state, ChallengeRequest(node=node))


def solved(challenge: Challenge) -> str:
    work = arithmetic.ChallengeWork(bytes.fromhex(challenge.seed), challenge.lanes, challenge.depth)
    return arithmetic.encode_answer(arithmetic.solve(work))


def answer(run: Orchestrator, challenge: Challenge, product: str, node: str = "") -> float:
    given = ChallengeAnswer(node=node or challenge.node, challenge=challenge.challenge, product=product)
    return capability_check.receive(run.state, given).gflops


def refused(run: Orchestrator, invite: Signed[Invite]) -> str:
    with pytest.raises(Refusal) as caught:
        run.beat(invite.document.node, invite)
    return caught.value.code


def test_a_strangers_machine_joins_after_the_right_product_in_time(run: Orchestrator) -> None:
    invite = invited(run)
    node = invite.document.node
    assert refused(run, invite) == "challenge-not-passed"
    challenge = ask(run, node)
    product = solved(challenge)
    run.clock.now += 2.0
    assert answer(run, challenge, product) == pytest.approx(arithmetic.FLOP_PER_PRODUCT / 2.0 / 1e9)
    assert run.beat(node, invite) == "Healthy"


def test_a_pools_own_pod_is_not_asked(run: Orchestrator) -> None:
    invite = invited(run, outside=False)
    with pytest.raises(Refusal, match="challenge-not-due"):
        ask(run, invite.document.node)
    assert run.beat(invite.document.node, invite) == "Healthy"


def test_a_node_that_is_not_known_any_more_registers_again_in_place_of_slipping_in(run: Orchestrator) -> None:
    invite = invited(run, outside=None)
    assert refused(run, invite) == "invite-not-valid"
    run.redis.delete(f"{run.state.prefix}:nodes")
    assert refused(run, invite) == "invite-not-valid"


def test_a_wrong_product_does_not_open_the_door_and_is_answered_once(run: Orchestrator) -> None:
    invite = invited(run)
    challenge = ask(run, invite.document.node)
    right = solved(challenge)
    wrong = arithmetic.encode_answer(bytes(arithmetic.ANSWER_BYTES))
    with pytest.raises(Refusal, match="challenge-wrong: the product is wrong"):
        answer(run, challenge, wrong)
    with pytest.raises(Refusal, match="no-such-challenge"):
        answer(run, challenge, right)
    assert refused(run, invite) == "challenge-not-passed"


@pytest.mark.parametrize(("text", "words"), [("A", "not base64"), ("AAAA", "has 262144 bytes, but this one has 3")])
def test_an_answer_that_is_no_product_is_refused_in_words(run: Orchestrator, text: str, words: str) -> None:
    challenge = ask(run, invited(run).document.node)
    with pytest.raises(Refusal, match=words):
        answer(run, challenge, text)


def test_a_right_product_that_comes_late_does_not_count(run: Orchestrator) -> None:
    invite = invited(run)
    challenge = ask(run, invite.document.node)
    product = solved(challenge)
    run.clock.now += challenge.limit_seconds + 0.1
    with pytest.raises(Refusal, match=r"challenge-too-slow: the answer took 5\.1 s, 5\.0 s are allowed"):
        answer(run, challenge, product)
    assert refused(run, invite) == "challenge-not-passed"


def test_an_answer_is_taken_once_and_from_its_own_node_only(run: Orchestrator) -> None:
    first, second = invited(run), invited(run, nonce="cd" * 16)
    challenge = ask(run, first.document.node)
    product = solved(challenge)
    with pytest.raises(Refusal, match="no-such-challenge"):
        answer(run, challenge, product, node=second.document.node)
    answer(run, challenge, product)
    with pytest.raises(Refusal, match="no-such-challenge"):
        answer(run, challenge, product, node=second.document.node)
    assert refused(run, second) == "challenge-not-passed"


def test_a_new_challenge_replaces_the_old_and_has_another_seed(run: Orchestrator) -> None:
    node = invited(run).document.node
    old, new = ask(run, node), ask(run, node)
    assert old.seed != new.seed
    product = solved(old)
    with pytest.raises(Refusal, match="no-such-challenge"):
        answer(run, old, product)


def test_what_was_shown_under_one_invite_does_not_count_for_the_next(run: Orchestrator) -> None:
    first = invited(run)
    node = first.document.node
    challenge = ask(run, node)
    answer(run, challenge, solved(challenge))
    record = run.state.nodes.require_known(node)
    run.state.nodes.put(record.model_copy(update={"invite_nonce": "cd" * 16}))
    later = first.document.model_copy(update={"nonce": "cd" * 16})
    assert refused(run, sign(later, run.role_keys["orchestrator"])) == "challenge-not-passed"


def test_a_member_whose_agent_restarts_shows_it_again_and_stays(run: Orchestrator) -> None:
    first = invited(run)
    node = first.document.node
    challenge = ask(run, node)
    answer(run, challenge, solved(challenge))
    assert run.beat(node, first) == "Healthy"
    with pytest.raises(Refusal, match="challenge-not-due"):
        ask(run, node)
    run.state.nodes.change(run.state.nodes.require_known(node), "invited", invite_nonce="cd" * 16)
    again = sign(first.document.model_copy(update={"nonce": "cd" * 16}), run.role_keys["orchestrator"])
    assert refused(run, again) == "challenge-not-passed"
    challenge = ask(run, node)
    answer(run, challenge, solved(challenge))
    assert run.beat(node, again) == "Healthy"


def test_a_dead_node_is_given_no_challenge_before_it_is_invited_again(run: Orchestrator) -> None:
    node = invited(run).document.node
    run.state.nodes.put(run.state.nodes.require_known(node).model_copy(update={"state": "Dead"}))
    with pytest.raises(Refusal, match="challenge-not-due"):
        ask(run, node)


def test_a_right_answer_whose_reply_was_lost_gets_the_same_result_again(run: Orchestrator) -> None:
    invite = invited(run)
    challenge = ask(run, invite.document.node)
    sent = ChallengeAnswer(node=challenge.node, challenge=challenge.challenge, product=solved(challenge))
    run.clock.now += 2.0
    result = capability_check.receive(run.state, sent)
    run.clock.now += 30.0
    assert capability_check.receive(run.state, sent) == result
    assert result.seconds == 2.0
    assert run.beat(challenge.node, invite) == "Healthy"


def test_a_right_answer_sent_again_says_nothing_for_the_next_invite(run: Orchestrator) -> None:
    node = invited(run).document.node
    challenge = ask(run, node)
    product = solved(challenge)
    answer(run, challenge, product)
    run.state.nodes.change(run.state.nodes.require_known(node), "invited", invite_nonce="cd" * 16)
    with pytest.raises(Refusal, match="no-such-challenge"):
        answer(run, challenge, product)


def test_challenges_for_one_key_are_few_whatever_invites_it_has(run: Orchestrator) -> None:
    node = invited(run).document.node
    for number in range(capability_check.MOST_TRIES):
        invited(run, nonce=f"{number:032x}", node=node)
        ask(run, node)
        run.clock.now += 60.0
    invited(run, nonce="ef" * 16, node=node)
    with pytest.raises(Refusal, match="too-many-challenges") as caught:
        ask(run, node)
    assert caught.value.retry_after_seconds == 60
    assert ask(run, invited(run).document.node).node != node, "others are not held up"


def test_tries_are_forgotten_ten_minutes_after_the_first(run: Orchestrator) -> None:
    node = invited(run).document.node
    ask(run, node)
    counter = f"{run.state.prefix}:challenge-tries:{node}"
    run.redis.expire(counter, 100)  # as 500 seconds later
    ask(run, node)
    assert 0 < run.redis.ttl(counter) <= 100, "a later try is no new beginning"
    run.redis.delete(counter)
    ask(run, node)
    assert 100 < run.redis.ttl(counter) <= capability_check.TRIES_SECONDS


@pytest.fixture
def crowd() -> Iterator[Callable[[bool], None]]:
    """Fills the door with others' answers, and empties it."""
    inside = 0

    def fill(full: bool) -> None:
        nonlocal inside
        while full and capability_check._waiting.acquire(blocking=False):
            inside += 1
        while inside and not full:
            capability_check._waiting.release()
            inside -= 1

    yield fill
    fill(False)


def test_a_crowd_at_the_door_is_put_off_and_the_time_in_it_is_not_the_nodes(
    run: Orchestrator, crowd: Callable[[bool], None]
) -> None:
    challenge = ask(run, invited(run).document.node)
    product = solved(challenge)
    run.clock.now += 2.0
    crowd(True)
    for _ in range(5):
        with pytest.raises(Refusal, match="too-many-answers"):
            answer(run, challenge, product)
        run.clock.now += 2.0
    crowd(False)
    assert answer(run, challenge, product) == pytest.approx(arithmetic.FLOP_PER_PRODUCT / 2.0 / 1e9)


def test_another_answer_does_not_have_the_time_of_one_that_was_put_off(
    run: Orchestrator, crowd: Callable[[bool], None]
) -> None:
    challenge = ask(run, invited(run).document.node)
    crowd(True)
    with pytest.raises(Refusal, match="too-many-answers"):
        answer(run, challenge, arithmetic.encode_answer(bytes(arithmetic.ANSWER_BYTES)))
    crowd(False)
    run.clock.now += challenge.limit_seconds + 0.1
    with pytest.raises(Refusal, match="challenge-too-slow"):
        answer(run, challenge, solved(challenge))


def test_strangers_to_the_run_are_given_no_challenge(run: Orchestrator) -> None:
    with pytest.raises(Refusal, match="not-admitted"):
        ask(run, PrivateKey.generate().public)


def test_the_agents_side_computes_what_the_orchestrator_takes(run: Orchestrator) -> None:
    invite = invited(run)
    node = invite.document.node

    class Direct:
        """The client's place: calls the orchestrator's functions."""

        def call(self, method: str, path: str, body: object, reply: type, **_: float) -> object:
            assert method == "POST"
            if path == "/v1/challenges":
                return capability_check.give(run.state, body)
            assert path == "/v1/challenge-answers"
            return capability_check.receive(run.state, body)

    assert show(Direct(), node).gflops > 0
    assert run.beat(node, invite) == "Healthy"
    assert invite.document.run == RUN
