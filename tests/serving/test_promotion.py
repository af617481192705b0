"""Tags of a run's store: which version they name, who moved them and why, on a folder and on MinIO."""

import json
import threading

import pytest
from run_documents import RunFolder
from served_runs import Promote, Served, make_run

from shoal.contracts import keys
from shoal.contracts.final_model import FinalModel
from shoal.contracts.serving import Promotion
from shoal.errors import RunFailed
from shoal.serving import promotion
from shoal.serving.promotion import TagWish
from shoal.storage.promotions import BadPromotion, promoted_versions, reachable, read_moves
from shoal.storage.versions import read_sealed_manifest

BY = ("--reason", "asked for", "--by", "ann")
WISH = TagWish("serving", "bob", "at the same time", 9.0)


def named(served: Served, tag: str = "serving") -> Promotion:
    return read_moves(served.run.store, tag)[-1]


def test_a_version_chosen_by_hand_is_named_with_its_digest_who_and_why(served: Served) -> None:
    said = served.said("promote", "--version", "2", *BY)
    made = named(served)
    seal = read_sealed_manifest(served.run.store, 2, served.access.trainer)
    assert (made.version, made.sha256, made.by, made.reason, made.how) == (2, seal.sha256, "ann", "asked for", "hand")
    assert [(each.benchmark, each.avg_at_k) for each in made.scores] == [("sums", 0.0)]
    assert f"serving: version 2 ({seal.sha256[:12]}), chosen by hand, by ann on " in said
    assert "asked for [0.0 % on sums]" in said.replace("0%", "0.0 %")


def test_the_best_version_is_that_of_the_run_or_of_a_benchmark(served: Served) -> None:
    served.best(2)
    served.said("promote", "--best", *BY)
    assert (named(served).version, named(served).how) == (2, "best")
    served.said("promote", "--best", "--benchmark", "sums", *BY)
    assert named(served).version == 1, "1 scored 1.0 on sums, 2 scored 0.0"


def test_the_best_of_a_benchmark_is_among_versions_that_are_there(served: Served) -> None:
    for index in range(3):
        served.run.store.delete(keys.version_shard(1, index))
    served.said("promote", "--best", "--benchmark", "sums", *BY)
    assert named(served).version == 2


def test_a_version_without_evaluation_is_promoted_by_hand_and_the_answer_says_so(served: Served) -> None:
    assert "version 0 was not evaluated" in served.said("promote", "--version", "0", *BY)
    assert named(served).scores == []


def test_a_run_without_evaluation_has_no_best_version(served: Served) -> None:
    expected = "no version of run demo was fully evaluated; it was scored on sums: give --version N"
    assert expected in served.refused("promote", "--best", *BY)
    refused = served.refused("promote", "--best", "--benchmark", "products", *BY)
    assert "no version of run demo was fully evaluated on products; it was scored on sums" in refused


def test_a_version_that_is_not_there_is_refused_with_those_that_are(served: Served) -> None:
    assert served.refused("promote", "--version", "7", *BY) == (
        "InputWrong: run demo has no version 7; it has versions 0, 1, 2"
    )
    served.lose(1)
    refused = served.refused("promote", "--version", "1", *BY)
    assert refused.startswith("InputWrong: the weights of version 1 are no longer in the store")
    assert read_moves(served.run.store, "serving") == []


def test_bytes_that_are_not_what_was_signed_move_no_tag(served: Served) -> None:
    served.run.store.put(keys.version_shard(2, 1), b"x" * 1024)
    refused = served.refused("promote", "--version", "2", *BY)
    assert refused.startswith("RunFailed: ")
    assert "shard 1 of version 2 does not have the SHA-256 of its seal" in refused
    assert read_moves(served.run.store, "serving") == []


def test_a_seal_of_another_key_moves_no_tag(served: Served) -> None:
    stranger = make_run(served.folder.parent / "strangers")
    stranger.add_version(2, {"config.json": b"{}"})
    for info in stranger.store.list(keys.version(2)):
        served.run.store.put(info.key, stranger.store.get(info.key))
    assert served.refused("promote", "--version", "2", *BY).startswith("RunFailed: ")
    assert read_moves(served.run.store, "serving") == []


def test_the_same_version_again_changes_nothing(served: Served, promote: Promote) -> None:
    promote(1)
    assert "tag serving names version 1 already, since " in promote(1)
    assert len(read_moves(served.run.store, "serving")) == 1


def test_a_roll_back_goes_to_the_version_before_and_a_second_one_further_back(served: Served, promote: Promote) -> None:
    for version in (0, 1, 2):
        promote(version)
    said = served.said("rollback", "--reason", "wrong dates", "--by", "bob")
    assert "serving: version 1" in said
    assert "rolled back, by bob" in said
    assert named(served).version == 1
    served.said("rollback", "--reason", "still wrong")
    assert named(served).version == 0
    assert "named no version before version 0" in served.refused("rollback", "--reason", "and again")


def test_a_roll_back_names_one_of_the_versions_before(served: Served, promote: Promote) -> None:
    for version in (0, 1, 2):
        promote(version)
    refused = served.refused("rollback", "--to", "2", "--reason", "x")
    assert refused == ("InputWrong: tag serving cannot go back to version 2: before version 2 it named versions 0, 1")
    served.said("rollback", "--to", "0", "--reason", "x")
    assert named(served).version == 0


def test_a_roll_back_to_a_version_that_is_lost_is_refused(served: Served, promote: Promote) -> None:
    promote(1)
    promote(2)
    served.lose(1)
    assert "the weights of version 1 are no longer in the store" in served.refused("rollback", "--reason", "x")
    assert named(served).version == 2


def test_of_two_who_move_a_tag_at_once_one_does_and_the_other_is_told(
    served: Served, promote: Promote, monkeypatch: pytest.MonkeyPatch
) -> None:
    promote(0)
    met = threading.Barrier(2, timeout=60)
    check = promotion.check_version

    def checked_together(*given: object) -> str:
        digest = check(*given)
        met.wait()
        return digest

    monkeypatch.setattr(promotion, "check_version", checked_together)
    said: list[str] = []

    def move(version: int) -> None:
        try:
            made = promotion.promote(served.access, version, "hand", WISH, lambda line: None)
            said.append(f"version {made.version}")
        except RunFailed as error:
            said.append(str(error))

    movers = [threading.Thread(target=move, args=(version,)) for version in (1, 2)]
    for each in movers:
        each.start()
    for each in movers:
        each.join(60)
    won, lost = sorted(said, key=len)
    assert won in ("version 1", "version 2")
    assert lost.startswith(f"bob moved tag serving to {won} at the same time (at the same time): nothing was changed")
    assert [move.number for move in read_moves(served.run.store, "serving")] == [0, 1]


def test_a_version_that_goes_while_it_is_promoted_is_not_named(
    served: Served, promote: Promote, monkeypatch: pytest.MonkeyPatch
) -> None:
    promote(1)
    check = promotion.check_version

    def checked_then_deleted(*given: object) -> str:
        digest = check(*given)
        served.lose(2)
        return digest

    monkeypatch.setattr(promotion, "check_version", checked_then_deleted)
    refused = served.refused("promote", "--version", "2", *BY)
    assert "version 2 was deleted while it was promoted" in refused
    assert "tag serving names version 1 as before" in refused
    assert named(served).version == 1


def test_show_says_what_a_tag_names_what_it_named_and_what_is_lost(served: Served, promote: Promote) -> None:
    assert "run demo has no tag; `shoal serving promote` makes one" in served.said("show")
    promote(1)
    promote(2)
    served.said("promote", "--version", "0", "--tag", "canary", *BY)
    served.lose(2)
    lines = served.said("show").splitlines()
    assert [line.partition(":")[0] for line in lines] == ["canary", "serving", "  lost", "  before"]
    assert lines[2].startswith("  lost: 1 of its objects are gone, first versions/v000002/00001.bin; promote another")
    record = json.loads(served.said("show", "--tag", "serving", "--json"))[0]
    assert record["can_go_back_to"] == [1]
    assert record["lost"].startswith("1 of its objects")
    assert "run demo has no tag other" in served.refused("show", "--tag", "other")


def test_wrong_options_are_said(served: Served) -> None:
    assert served.refused("promote", *BY).endswith("say which version: either --version N, or --best")
    assert "either --version N, or --best" in served.refused("promote", "--best", "--version", "1", *BY)
    assert "--benchmark goes with --best" in served.refused("promote", "--version", "1", "--benchmark", "sums", *BY)
    assert "give --reason TEXT" in served.refused("promote", "--version", "1")
    assert "--tag Not_A_Tag: at most 40 of" in served.refused("promote", "--version", "1", "--tag", "Not_A_Tag", *BY)
    assert "--reason: " in served.refused("promote", "--version", "1", "--reason", "x" * 2001)


def test_a_tag_that_cannot_be_read_is_said(served: Served, promote: Promote) -> None:
    promote(1)
    served.run.store.put(keys.promotion("serving", 1), b"{}")
    assert "serving/serving/000001.json cannot be read" in served.refused("show")
    with pytest.raises(BadPromotion):
        promoted_versions(served.run.store)


def test_a_move_that_was_copied_to_another_tag_is_said(served: Served, promote: Promote) -> None:
    promote(1)
    served.run.store.put(keys.promotion("canary", 0), served.run.store.get(keys.promotion("serving", 0)))
    assert "is of tag serving and number 0: somebody copied it there" in served.refused("show", "--tag", "canary")


def move(number: int, version: int, how: str = "hand", keep: int | None = None) -> Promotion:
    return Promotion.model_validate(
        {
            "run": "demo", "tag": "serving", "number": number, "version": version, "sha256": "ab" * 32, "how": how,
            "by": "ann", "reason": "why", "unix": float(number), "keep": keep,
        }
    )  # fmt: skip


def versions(*moves: Promotion) -> list[int]:
    return [each.version for each in reachable(moves)]


def test_what_a_roll_back_can_reach_is_what_lies_below() -> None:
    assert versions() == []
    assert versions(move(0, 1), move(1, 2), move(2, 3)) == [1, 2, 3]
    assert versions(move(0, 1), move(1, 2), move(2, 3), move(3, 2, "back")) == [1, 2]
    assert versions(move(0, 1), move(1, 2), move(2, 1, "back"), move(3, 4)) == [1, 4]
    assert versions(move(0, 1), move(1, 2), move(2, 3, keep=2)) == [2, 3]
    assert versions(move(0, 1), move(1, 2), move(2, 3, keep=1), move(3, 4)) == [3, 4]


def test_versions_that_a_tag_can_go_back_to_are_promoted_and_others_not(served: Served, promote: Promote) -> None:
    assert promoted_versions(served.run.store) == set()
    promote(1)
    promote(2)
    assert promoted_versions(served.run.store) == {1, 2}
    served.said("rollback", "--reason", "x")
    assert promoted_versions(served.run.store) == {1}
    served.said("promote", "--version", "0", "--tag", "canary", *BY)
    assert promoted_versions(served.run.store) == {0, 1}
    served.said("promote", "--version", "2", "--keep", "1", *BY)
    assert promoted_versions(served.run.store) == {0, 2}


def test_a_run_that_publishes_no_versions_promotes_its_result(run_with_result: RunFolder, served: Served) -> None:
    served.run, served.arguments = run_with_result, ("demo", "--runs-dir", str(run_with_result.path.parent))
    assert "its result is version 9" in served.refused("promote", "--version", "3", *BY)
    served.said("promote", "--version", "9", *BY)
    assert named(served).version == 9
    fetched = served.said("fetch", "--folder", str(served.folder))
    assert "current: version 9 of run demo" in fetched
    assert (served.folder / "current" / "model.safetensors").read_bytes() == b"weights"
    run_with_result.store.delete(keys.FINAL_MODEL + "model.safetensors")
    assert "lost: 1 of its objects are gone" in served.said("show")


@pytest.fixture
def run_with_result(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    import hashlib

    run = make_run(tmp_path_factory.mktemp("sft"))
    files = {"model.safetensors": b"weights", "config.json": b"{}"}
    for name, data in files.items():
        run.store.put(keys.FINAL_MODEL + name, data)
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    run.store.put(keys.FINAL_SEAL, FinalModel(run="demo", version=9, model_id="demo/tiny", files=digests).to_json())
    return run
