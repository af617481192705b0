"""Retention: what goes is what nobody can need any more; a number's seal never goes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from tiny_run import config, make_store, ranks

from samples import RUN
from shoal.contracts import keys
from shoal.contracts.evaluation import Benchmark, BenchmarkTasks, BestVersion, EvaluationSettings
from shoal.contracts.failures import RollBack
from shoal.contracts.serving import Promotion
from shoal.contracts.trainer import TrainerSettings
from shoal.storage import Store
from shoal.storage.promotions import move_tag, promoted_versions
from shoal.storage.versions import versions_with_shards
from shoal.training import delivery
from shoal.training.delivery import Delivery
from shoal.training.retention import (
    best_version,
    delete_shards,
    old_notes,
    old_states,
    old_versions,
)
from shoal.training.stability import History, Incident
from shoal.training.state import States

CALM = History()


def test_the_newest_states_are_kept() -> None:
    assert old_states([1, 2, 3, 4, 5], config(), CALM, behaviour=False) == [1, 2]
    few = config(trainer=TrainerSettings(kept_states=1))
    assert old_states([1, 2, 3, 4, 5], few, CALM, behaviour=False) == [1, 2, 3, 4]
    assert old_states([], config(), CALM, behaviour=False) == []


def test_the_asynchrony_window_is_kept_where_old_versions_are_asked_for_log_probabilities() -> None:
    few = config(trainer=TrainerSettings(kept_states=1), async_level=2)
    assert old_states([1, 2, 3, 4, 5, 6], few, CALM, behaviour=True) == [1, 2]


def test_the_version_of_a_roll_back_is_kept_until_no_state_is_left_from_which_it_would_be_gone_back_to_again() -> None:
    asked = config(roll_back=RollBack(to_version=1, at_step=6))
    assert old_states([1, 2, 3, 4, 5, 6], asked, CALM, behaviour=False) == [2, 3]
    assert old_states([1, 2, 3, 4, 5, 6, 7], asked, CALM, behaviour=False) == [2, 3, 4]  # 7 may turn out to be damaged
    assert old_states([1, 5, 6, 7, 8], asked, CALM, behaviour=False) == [5]
    assert old_states([1, 6, 7, 8, 9], asked, CALM, behaviour=False) == [1, 6]
    between = config(roll_back=RollBack(to_version=15, at_step=60))
    assert old_states([0, 10, 20, 30, 40, 50], between, CALM, behaviour=False) == [0, 20], "10 is the newest before 15"


def test_notes_stay_of_kept_versions_and_of_what_may_be_lost_with_a_pod() -> None:
    noted = list(range(41))
    assert old_notes(noted, [0, 12, 38]) == [number for number in range(1, 23) if number != 12]
    assert old_notes(noted[:15], []) == []


def test_the_newest_state_before_signs_of_instability_is_kept() -> None:
    warned = History(warned_from=3)
    assert old_states([1, 2, 3, 4, 5, 6], config(), warned, behaviour=False) == [1, 3]
    opened = History(warned_from=3, incident=Incident(version=4, calm_version=2))
    assert old_states([1, 2, 3, 4, 5, 6], config(), opened, behaviour=False) == [1, 3]
    settled = History(incident=Incident(version=4, calm_version=2, settled=True))
    assert old_states([1, 2, 3, 4, 5, 6], config(), settled, behaviour=False) == [1, 2, 3]


def test_served_versions_the_asynchrony_window_and_the_base_model_are_kept() -> None:
    full = dict.fromkeys(range(11))
    assert old_versions(list(range(11)), {8, 9, 10}, config(kept_versions=2, async_level=0), full) == [
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        8,
    ]
    assert old_versions(list(range(11)), {8, 9, 10}, config(kept_versions=2, async_level=4), full) == [1, 2, 3, 4, 5]
    assert old_versions(list(range(11)), {8, 9, 10}, config(kept_versions=5, async_level=0), full) == [1, 2, 3, 4, 5]
    assert old_versions([], set(), config(), {}) == []


def test_the_weights_that_a_roll_back_to_come_goes_back_to_are_kept_with_what_they_are_encoded_against() -> None:
    bases = dict.fromkeys(range(11)) | {4: 3}
    served = list(range(11))
    for at_step, kept in ((12, {3, 4}), (10, {3, 4}), (9, set())):
        run = config(kept_versions=2, async_level=0, roll_back=RollBack(to_version=4, at_step=at_step))
        assert old_versions(served, {10}, run, bases) == [number for number in range(1, 9) if number not in kept]


def test_what_a_kept_version_is_encoded_against_is_kept_to_the_end_of_the_chain() -> None:
    bases = {0: None, 3: None, 4: 3, 5: 4, 6: 5, 7: None, 8: 7, 9: 8, 10: 9}
    run = config(kept_versions=2, async_level=0)
    assert old_versions([0, *range(3, 11)], {10}, run, bases) == [3, 4, 5, 6]


def test_a_state_that_is_kept_for_a_roll_back_keeps_no_published_versions() -> None:
    run = config(kept_versions=2, async_level=0)
    assert 2 in old_versions(list(range(11)), {1, 9, 10}, run, dict.fromkeys(range(11)))


def test_the_seal_of_a_deleted_version_stays(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    for name in ("open.json", "00000.bin", "00000.json", "weights.json"):
        store.put(keys.version(3) + name, b"x")
    assert versions_with_shards(store) == [3]
    delete_shards(store, 3)
    assert [info.key for info in store.list(keys.VERSIONS)] == [keys.version_open(3), keys.version_weights(3)]
    assert versions_with_shards(store) == []


def test_the_best_version_is_kept_and_one_that_is_being_scored_a_version_longer() -> None:
    benchmark = Benchmark(name="sums", tasks=BenchmarkTasks(environment="arithmetic"))
    scored = config(kept_versions=2, async_level=0, evaluation=EvaluationSettings(benchmarks=[benchmark]))
    full = dict.fromkeys(range(11))
    assert old_versions(list(range(11)), {10}, scored, full) == [1, 2, 3, 4, 5, 6, 7]
    assert old_versions(list(range(11)), {10}, scored, full, best=4) == [1, 2, 3, 5, 6, 7]
    chained = full | {4: 3}
    assert old_versions(list(range(11)), {10}, scored, chained, best=4) == [1, 2, 5, 6, 7]


def test_the_best_version_is_read_from_the_store_and_none_is_none(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    assert best_version(store) is None
    store.put(keys.BEST_VERSION, BestVersion(version=4, benchmark="sums", value=0.5).to_json())
    assert best_version(store) == 4


def test_promoted_versions_are_kept_with_what_they_are_encoded_against() -> None:
    bases = dict.fromkeys(range(11)) | {5: 4, 4: 3}
    run = config(kept_versions=2, async_level=0)
    assert old_versions(list(range(11)), {10}, run, bases, promoted={5}) == [1, 2, 6, 7, 8]


@pytest.fixture
def eleven(tmp_path: Path) -> Store:
    """A store with eleven published versions in full."""
    store = make_store(tmp_path / "store")
    for version in range(11):
        store.put(keys.version_weights(version), b"x")
        store.put(keys.version_shard(version, 0), b"x")
    return store


def delete_old(store: Store, tmp_path: Path) -> list[int]:
    """What the trainer leaves of the versions."""
    nothing = cast("Any", None)  # deletion asks neither the outbox nor the orchestrator
    states = States(store, RUN, ranks())
    run = config(kept_versions=2, async_level=0)
    Delivery(run, store, states, nothing, nothing, ranks())._delete_old(CALM)
    return versions_with_shards(store)


def promoted(version: int, number: int = 0, **changes: Any) -> Promotion:
    return Promotion(
        **{
            "run": RUN, "tag": "serving", "number": number, "version": version, "sha256": "ab" * 32, "how": "hand", "by": "ann",
            "reason": "why", "unix": 1.0,
        } | changes
    )  # fmt: skip


def test_the_trainer_deletes_no_version_that_a_tag_names_or_can_go_back_to(eleven: Store, tmp_path: Path) -> None:
    for number, version in enumerate((3, 5)):
        assert move_tag(eleven, promoted(version, number))
    assert move_tag(eleven, promoted(7, tag="canary"))
    assert delete_old(eleven, tmp_path) == [0, 3, 5, 7, 9, 10]
    assert move_tag(eleven, promoted(3, 2, how="back"))
    assert delete_old(eleven, tmp_path) == [0, 3, 7, 9, 10]


def test_a_version_that_is_promoted_while_others_go_stays(
    eleven: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def delete_and_promote(store: Store, version: int, may_go: Callable[[], bool]) -> bool:
        gone = delete_shards(store, version, may_go)
        move_tag(store, promoted(6))
        return gone

    monkeypatch.setattr(delivery, "delete_shards", delete_and_promote)
    assert delete_old(eleven, tmp_path) == [0, 6, 9, 10]


def test_a_version_that_is_promoted_after_the_tags_were_read_and_before_it_goes_stays_whole(
    eleven: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The promotion listed the version, and found all of it, before the first deletion."""
    for version in range(11):
        eleven.put(keys.version_descriptor(version, 0), b"described")
    reads = 0

    def read_then_promoted(store: Store) -> set[int]:
        nonlocal reads
        found = promoted_versions(store)
        reads += 1
        if reads == 1:
            move_tag(store, promoted(1))
        return found

    monkeypatch.setattr(delivery, "promoted_versions", read_then_promoted)
    assert delete_old(eleven, tmp_path) == [0, 1, 9, 10]
    assert eleven.get(keys.version_descriptor(1, 0)) == b"described"


def test_whoever_promotes_a_version_that_goes_sees_a_gap(eleven: Store) -> None:
    """Before the tags are read for the last time."""
    for version in range(11):
        eleven.put(keys.version_descriptor(version, 0), b"described")
    seen: list[str] = []

    def look() -> bool:
        seen.extend(info.key for info in eleven.list(keys.version(1)))
        return True

    assert delete_shards(eleven, 1, look)
    assert keys.version_descriptor(1, 0) not in seen
    assert keys.version_shard(1, 0) in seen


def test_what_lies_beside_the_tags_stops_no_deletion(eleven: Store, tmp_path: Path) -> None:
    """A folder that somebody copied by hand, under a name that no tag has."""
    beside = tmp_path / "store" / "shoal" / RUN / "serving" / "serving copy"
    beside.mkdir(parents=True)
    (beside / "000000.json").write_bytes(b"{}")
    assert any("copy" in info.key for info in eleven.list(keys.SERVING))
    assert delete_old(eleven, tmp_path) == [0, 9, 10]


def test_a_tag_that_cannot_be_read_keeps_all_versions(eleven: Store, tmp_path: Path) -> None:
    eleven.put(keys.promotion("serving", 0), b"{}")
    assert delete_old(eleven, tmp_path) == list(range(11))
