"""Rosters whose keys follow each other: who is believed about what, and which announcements change nothing."""

from collections.abc import Callable
from typing import Any

import pytest

from changed_keys import RunKeys
from samples import DIGEST, LEASE, NODE, NOW, OPEN, RUN, key
from shoal.contracts.roster import ROLES, KeyChange, Roster, first_roster, key_digest, verified_roster
from shoal.contracts.signed import BadSignature, Signed, sign
from shoal.contracts.trust import OVERLAP_SECONDS, KeysNotice, PastWork, TrustedKeys
from shoal.contracts.verdicts import ValidatorCard, Verdict, votes_of
from shoal.contracts.weights import ShardDescriptor, WeightsManifest
from shoal.crypto.canonical import document_digest
from shoal.crypto.keys import PrivateKey

LATER = NOW + OVERLAP_SECONDS + 1


def new_keys(*, fixed: bool = True) -> RunKeys:
    roles = {role: key(20 + number) for number, role in enumerate(ROLES)}
    return RunKeys(RUN, key(1), roles, fixed=key(2) if fixed else None)


def trust(keys: RunKeys, now: float = LATER) -> TrustedKeys:
    return TrustedKeys(keys.roster, key(1).public, clock=lambda: now)


def refusal(action: Callable[[], Any]) -> str:
    with pytest.raises(BadSignature) as caught:
        action()
    return str(caught.value)


def signed_again(roster: Roster, signer: PrivateKey, **changes: Any) -> Signed[Roster]:
    return sign(roster.model_copy(update=changes), signer)


def manifest(version: int = 7, sha256: str = DIGEST) -> WeightsManifest:
    return WeightsManifest(
        run=RUN, version=version, model="m", sha256=sha256, open_digest=document_digest(OPEN), shards=[DIGEST]
    )


def verdict(step: int = 3, **more: Any) -> Verdict:
    return Verdict(
        run=RUN,
        node=NODE,
        lease=LEASE,
        step=step,
        submission=0,
        sha256=DIGEST,
        outcome="reject",
        reason="redraw",
        **more,
    )


# The roster by itself.


def test_a_roster_is_checked_with_any_run_key_that_the_run_had() -> None:
    keys = new_keys()
    keys.change("trainer", NOW)
    keys.change("run", NOW + 1)
    keys.change("validator", NOW + 2, leaked=True)
    for run_key in (key(1), key(2)):
        assert verified_roster(keys.roster, run_key.public).generation == 4
    assert "no change of the run key leads there" in refusal(lambda: verified_roster(keys.roster, key(3).public))
    assert first_roster(keys.roster) == new_keys().roster  # to the byte: nothing starts again for it


def test_a_roster_without_changes_is_written_as_before() -> None:
    roster = new_keys(fixed=False).roster.document
    assert set(roster.model_dump(mode="json")) == {"run", "keys"}
    assert not roster.own_validator_keys


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda c, k: sign(c.model_copy(update={"old": NODE}), k.former["trainer"][0]), "Change is signed by"),
        (lambda c, k: sign(c.model_copy(update={"run": "other"}), k.former["trainer"][0]), "is of run 'other'"),
        (lambda c, k: sign(c, k.roles["trainer"]), "Change is signed by"),
        (lambda c, k: sign(c, k.run_key), "Change is signed by"),
        (lambda c, k: sign(c.model_copy(update={"leaked": True}), k.former["trainer"][0]), "Change is signed by"),
        (lambda c, k: sign(c.model_copy(update={"next_run_key": DIGEST}), k.former["trainer"][0]), "fixes a run key"),
    ],
)
def test_a_change_that_does_not_follow_is_refused(change: Any, problem: str) -> None:
    keys = new_keys()
    keys.change("trainer", NOW)
    [own] = keys.roster.document.changes
    forged = signed_again(keys.roster.document, keys.run_key, changes=[change(own.document, keys)])
    assert problem in refusal(lambda: verified_roster(forged, key(1).public)).replace("KeyChange", "Change")


def test_no_key_comes_back_and_no_change_is_older_than_the_one_before() -> None:
    keys = new_keys()
    keys.change("trainer", NOW, new=key(40))
    keys.change("trainer", NOW - 1)
    assert "older than the one before" in refusal(lambda: verified_roster(keys.roster, key(1).public))
    keys = new_keys()
    keys.change("trainer", NOW, new=key(20))
    assert "was a key of this run before" in refusal(lambda: verified_roster(keys.roster, key(1).public))


def test_the_run_key_that_was_fixed_is_the_only_one_that_may_follow() -> None:
    keys = new_keys()
    keys.change("run", NOW, new=key(3))
    assert "another key than the one that was fixed" in refusal(lambda: verified_roster(keys.roster, key(1).public))


# Announcements.


def test_an_old_roster_changes_nothing_and_a_newer_one_is_taken() -> None:
    keys = new_keys()
    held = trust(keys)
    first = keys.roster
    second = keys.change("trainer", NOW)
    third = keys.change("relay", NOW + 1)
    assert held.adopt(third)
    assert [held.adopt(each) for each in (first, second, third)] == [False, False, False]
    assert held.roster.generation == 3


def test_forged_and_contradicting_rosters_are_refused() -> None:
    keys, twin = new_keys(), new_keys()
    held = trust(keys)
    thief = RunKeys(RUN, key(9), dict(keys.roles))
    thief.change("trainer", NOW)
    assert "no change of the run key leads there" in refusal(lambda: held.adopt(thief.roster))
    keys.change("trainer", NOW, new=key(40))
    twin.change("trainer", NOW, new=key(41))
    assert held.adopt(keys.roster)
    assert "signed two histories" in refusal(lambda: held.adopt(twin.roster))
    others = RunKeys(RUN, key(1), {**keys.roles, "relay": key(60)}, fixed=key(2))
    assert "begins with other keys" in refusal(lambda: held.adopt(others.change("trainer", NOW)))


def test_the_keys_of_a_roster_are_those_that_its_changes_lead_to() -> None:
    keys = new_keys()
    keys.change("trainer", NOW)
    other = {**keys.roster.document.keys, "trainer": key(50).public}
    swapped = signed_again(keys.roster.document, keys.run_key, keys=other)
    held = trust(keys)
    assert "its changes lead to" in refusal(lambda: held.adopt(swapped))
    assert held.roster.keys["trainer"] == keys.roles["trainer"].public
    for fixed in (True, False):
        verified_roster(new_keys(fixed=fixed).roster, key(1).public)


def test_a_roster_with_the_same_changes_is_not_newer_and_one_without_any_has_no_earlier_signature() -> None:
    keys = new_keys()
    first = keys.roster
    again = keys.change("trainer", NOW)
    held = trust(keys)
    assert not held.adopt(signed_again(again.document, keys.run_key, first_signature="0" * 128))
    fresh = TrustedKeys(first, key(1).public)
    forged = signed_again(first.document, key(1), first_signature=first.signature)
    assert "no change of a key" in refusal(lambda: fresh.adopt(forged))


def test_a_thief_of_the_run_key_is_ended_by_the_key_that_was_fixed() -> None:
    owner, thief = new_keys(), new_keys()
    held = trust(owner)
    for number in range(3):
        thief.change("trainer", NOW + number)
    assert held.adopt(thief.roster)  # nobody can tell yet
    took_over = new_keys()
    took_over.change("run", NOW + 5, new=key(3))
    assert "another key than the one that was fixed" in refusal(lambda: held.adopt(took_over.roster))
    owner.change("run", NOW + 9, leaked=True)
    assert held.adopt(owner.roster)
    assert held.roster.keys["trainer"] == owner.roles["trainer"].public
    thief.change("relay", NOW + 10)
    assert not held.adopt(thief.roster)


# What is still believed.


def test_a_planned_change_leaves_the_old_key_some_minutes() -> None:
    keys = new_keys()
    old = keys.roles["trainer"]
    keys.change("trainer", NOW)
    for now, live in ((NOW + 1, True), (LATER, False)):
        held = trust(keys, now)
        assert (held.role_of(old.public) == "trainer") is live
        assert (old.public in held.of("trainer").acting()) is live
        if live:
            sign(manifest(), old).verified(held.of("trainer"))
    assert trust(keys).role_of(keys.roles["trainer"].public) == "trainer"


def test_a_leaked_key_acts_no_more_and_is_believed_only_about_what_the_ledger_has() -> None:
    keys = new_keys()
    old = keys.roles["trainer"]
    keys.change("trainer", NOW, leaked=True)
    held = trust(keys, NOW + 1)
    assert held.role_of(old.public) is None
    assert held.of("trainer").acting() == [keys.roles["trainer"].public]
    assert "this key of the trainer leaked" in refusal(lambda: sign(manifest(), old).verified(held.of("trainer")))
    past = PastWork(run=RUN, versions={7: DIGEST})
    held.take(KeysNotice(roster=keys.roster, past=sign(past, keys.roles["orchestrator"])))
    descriptor = ShardDescriptor(run=RUN, version=7, index=0, size=1, sha256=DIGEST)
    sign(manifest(), old).verified(held.of("trainer"))
    sign(descriptor, old).verified(held.of("trainer"))
    sign(manifest(8), keys.roles["trainer"]).verified(held.of("trainer"))
    for forged in (manifest(8), manifest(7, "f" * 64), descriptor.model_copy(update={"version": 8})):
        assert "leaked" in refusal(lambda forged=forged: sign(forged, old).verified(held.of("trainer")))


def test_only_the_orchestrator_of_the_newest_roster_says_what_is_past() -> None:
    keys = new_keys()
    stolen = keys.roles["orchestrator"]
    keys.change("orchestrator", NOW, leaked=True)
    held = trust(keys)
    forged = KeysNotice(roster=keys.roster, past=sign(PastWork(run=RUN, versions={7: DIGEST}), stolen))
    assert "PastWork is signed by" in refusal(lambda: held.take(forged))
    assert held.past is None


def test_what_is_past_only_grows_while_one_orchestrator_key_says_it() -> None:
    keys = new_keys()
    keys.change("trainer", NOW, leaked=True)
    held = trust(keys)

    def take(versions: dict[int, str], step: int | None) -> PastWork | None:
        past = PastWork(run=RUN, versions=versions, step=step)
        held.take(KeysNotice(roster=keys.roster, past=sign(past, keys.roles["orchestrator"])))
        return held.past

    newest = take({7: DIGEST, 8: DIGEST}, 8)
    for versions, step in (({7: DIGEST}, 8), ({7: DIGEST, 8: "f" * 64}, 9), ({7: DIGEST, 8: DIGEST}, 7)):
        assert take(versions, step) == newest
    assert take({7: DIGEST, 8: DIGEST}, None) == newest
    later = take({7: DIGEST, 8: DIGEST, 9: DIGEST}, 8)
    assert later is not None
    assert 9 in later.versions
    keys.change("orchestrator", NOW + 1, leaked=True)  # the thief may have signed what is not so
    assert take({7: DIGEST}, 7) == PastWork(run=RUN, versions={7: DIGEST}, step=7)


def test_verdicts_of_a_leaked_key_end_with_the_last_step_that_has_files() -> None:
    keys = new_keys()
    old = keys.roles["validator"]
    keys.change("validator", NOW, leaked=True)
    held = trust(keys)
    held.take(
        KeysNotice(roster=keys.roster, past=sign(PastWork(run=RUN, versions={}, step=3), keys.roles["orchestrator"]))
    )
    sign(verdict(3), old).verified(held.of("validator"))
    assert "leaked" in refusal(lambda: sign(verdict(4), old).verified(held.of("validator")))


# Validators' own keys.


def test_a_verdict_is_by_the_validator_of_its_card() -> None:
    keys = new_keys()
    held, own, role = trust(keys), key(70), keys.roles["validator"]
    card = sign(ValidatorCard(run=RUN, validator="v-0", key=own.public, unix=NOW), role)
    sign(verdict(validator="v-0", card=card), own).verified(held.of("validator"))
    forged_card = sign(ValidatorCard(run=RUN, validator="v-0", key=own.public, unix=NOW), own)
    for document, signer, problem in (
        (verdict(validator="v-0", card=card), key(71), "its card is of key"),
        (verdict(validator="v-1", card=card), own, "its card is of validator 'v-0'"),
        (verdict(validator="v-0", card=forged_card), own, "required:"),
        (verdict(validator="v-0"), own, "required:"),
    ):
        signed = sign(document, signer)
        assert problem in refusal(lambda signed=signed: signed.verified(held.of("validator")))


def test_neither_a_name_nor_a_key_votes_twice() -> None:
    assert votes_of([("v-0", "a"), ("v-1", "a"), ("v-2", "a")]) == 1
    assert votes_of([("v-0", "a"), ("v-0", "b")]) == 1
    assert votes_of([("v-0", "a"), ("v-1", "b"), ("v-1", "b")]) == 2
    assert votes_of([]) == 0


def test_a_change_and_its_digest() -> None:
    assert key_digest(key(2).public) == new_keys().roster.document.next_run_key
    with pytest.raises(ValueError, match="role"):
        KeyChange.model_validate({"run": RUN, "role": "nobody", "old": NODE, "new": NODE, "unix": 0})
