"""Names in the store, the layout of published weights, the task table and the ledger's chain."""

import hashlib
import io
import itertools
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ledger_samples import altered
from samples import CHANGED_ROSTER, COMPUTE, DIGEST, LEASE, NODE, OPEN, ORCHESTRATOR_KEY, RUN, TERMS, run_config
from shoal.contracts import keys
from shoal.contracts.completions import LengthReward
from shoal.contracts.signed import Signed, sign
from shoal.contracts.task_table import TASKS_SCHEMA, BadTaskTable, read_tasks, write_tasks
from shoal.contracts.tasks import ChatMessage, Task, tasks_digest
from shoal.contracts.weights import CheckpointFile, DeltaBase, ShardDescriptor, VersionOpen
from shoal.contracts.work import LeasePart
from shoal.crypto.canonical import document_digest
from shoal.ledger.entries import GENESIS, Accepted, LedgerEntry, MalformedFact
from shoal.rewards.total import total_reward
from shoal.storage.store import KEY_PATTERN, MAX_KEY_LENGTH


class TestKeys:
    def test_they_are_the_documented_ones(self) -> None:
        assert keys.version_open(7) == "versions/v000007/open.json"
        assert keys.version_weights(7) == "versions/v000007/weights.json"
        assert keys.version_shard(7, 2) == "versions/v000007/00002.bin"
        assert keys.version_descriptor(7, 2) == "versions/v000007/00002.json"
        assert keys.trainer_state(7) == "trainer/state/v000007/"
        assert keys.staging(NODE, LEASE) == f"staging/{NODE}/{LEASE}"
        assert keys.upload(NODE, DIGEST) == f"uploads/{NODE}/{DIGEST}.parquet"
        assert keys.verdict(NODE, DIGEST) == f"verdicts/{NODE}/{DIGEST}.json"
        assert keys.step_batch(7) == "steps/000007/batch.json"
        assert keys.step_metrics(7) == "steps/000007/metrics.json"
        assert keys.ledger_entry(42) == "ledger/00000000000000000042.json"
        assert keys.task_table(DIGEST) == f"tasks/{DIGEST}.parquet"

    def test_every_one_of_them_is_taken_by_the_store(self) -> None:
        prefix = f"{run_config().storage.prefix}/{'r' * 40}/"
        for key in (
            keys.version_shard(999_999, 99_998),
            keys.staging(NODE, LEASE),
            keys.upload(NODE, DIGEST),
            keys.PREPARED,
        ):
            assert KEY_PATTERN.fullmatch(key)
            assert len(prefix + key) < MAX_KEY_LENGTH

    @given(st.integers(0, 999_999), st.integers(0, 999_999))
    def test_the_order_of_names_is_the_order_of_numbers(self, one: int, two: int) -> None:
        assert (one < two) == (keys.version_name(one) < keys.version_name(two))
        assert (one < two) == (keys.step_batch(one) < keys.step_batch(two))
        assert (one < two) == (keys.ledger_entry(one) < keys.ledger_entry(two))
        assert keys.parse_version(keys.version_name(one)) == one

    @pytest.mark.parametrize(
        "name",
        [
            "",
            "v",
            "v7",
            "v0000007",
            "v00000x",
            "V000007",
            "v000007\n",
            "v-00007",
            " v000007",
            "v000007.partial",
            "v\u0660\u0660\u0660\u0660\u0660\u0667",
        ],
    )
    def test_what_is_no_versions_name_has_no_number(self, name: str) -> None:
        assert keys.parse_version(name) is None

    @pytest.mark.parametrize("number", [-1, 1_000_000])
    def test_a_version_out_of_range_has_no_name(self, number: int) -> None:
        with pytest.raises(ValueError, match=f"a policy version is 0 to 999999, got {number}"):
            keys.version_name(number)


def opening(sizes: list[int], shard_size: int, **changes: Any) -> VersionOpen:
    fields = {
        "run": RUN, "version": 7, "shard_size": shard_size, "shard_count": max(1, -(-sum(sizes) // shard_size)),
        "files": [CheckpointFile(name=f"f{number}", size=size) for number, size in enumerate(sizes)],
    } | changes  # fmt: skip
    return VersionOpen(**fields)


class TestWeights:
    @given(st.lists(st.integers(0, 5000), min_size=1, max_size=6), st.integers(1, 3000))
    def test_shards_cover_the_stream_without_gap_or_overlap(self, sizes: list[int], shard_size: int) -> None:
        record = opening(sizes, shard_size)
        bounds = [record.shard_bounds(index) for index in range(record.shard_count)]
        assert bounds[0][0] == 0
        assert bounds[-1][1] == record.total_size == sum(sizes)
        assert all(end == start for (_, end), (start, _) in itertools.pairwise(bounds))
        assert all(end - start == shard_size for start, end in bounds[:-1])

    @pytest.mark.parametrize("index", [-1, 3])
    def test_a_shard_that_is_not_there_is_refused(self, index: int) -> None:
        with pytest.raises(ValueError, match=f"shard {index} of version 7: it has 3"):
            OPEN.shard_bounds(index)

    @pytest.mark.parametrize("count", [1, 2, 4])
    def test_a_wrong_number_of_shards_is_refused(self, count: int) -> None:
        with pytest.raises(ValidationError, match=f"shard_count is {count}, 2500 bytes in shards of 1024 need 3"):
            opening([2500], 1024, shard_count=count)

    def test_two_files_of_one_name_are_refused(self) -> None:
        with pytest.raises(ValidationError, match="two files have the same name"):
            opening([1, 2], 1024, files=[CheckpointFile(name="a", size=1), CheckpointFile(name="a", size=2)])

    def test_a_full_version_is_written_as_before_there_were_deltas(self) -> None:
        assert set(json.loads(OPEN.to_json())) == {
            "schema_version", "run", "version", "files", "shard_size", "shard_count", "encoding"
        }  # fmt: skip
        assert b"encoding" not in ShardDescriptor(run=RUN, version=7, index=0, size=1, sha256="0" * 64).to_json()
        digest = hashlib.sha256(rfc8785.dumps(json.loads(OPEN.to_json()))).hexdigest()
        assert document_digest(OPEN) == digest

    def test_a_delta_names_its_base_and_a_full_version_has_none(self) -> None:
        base = {"version": 6, "sha256": "0" * 64, "item_size": 2}
        assert opening([10], 10, encoding="delta", base=base).base == DeltaBase(**base)
        for encoding, named in (("delta", None), ("full", base)):
            with pytest.raises(ValidationError, match=f"encoding is {encoding}: a delta names its base"):
                opening([10], 10, encoding=encoding, base=named)
        with pytest.raises(ValidationError, match="version 7 cannot be a delta against version 7: give an older one"):
            opening([10], 10, encoding="delta", base=base | {"version": 7})
        with pytest.raises(ValidationError, match="item_size"):
            opening([10], 10, encoding="delta", base=base | {"item_size": 3})

    @pytest.mark.parametrize(
        "name", ["", "..", ".", "../x", "/etc/passwd", "a/b", "a\\b", ".shards", "-x", "a\n", "a" * 129, "é"]
    )
    def test_a_file_name_that_could_lead_elsewhere_is_refused(self, name: str) -> None:
        with pytest.raises(ValidationError, match="name"):
            CheckpointFile(name=name, size=1)


TASKS = [
    Task(
        problem_id="one", task_type="arithmetic", prompt="12+34=", verification_info={"answer": "46"}, metadata={"n": 1}
    ),
    Task(problem_id="two", task_type="chat", prompt=[ChatMessage(role="user", content="ü\u2028")]),
]


def task_table(**columns: list[Any]) -> bytes:
    rows: dict[str, list[Any]] = {
        "problem_id": ["one"], "task_type": ["t"], "prompt": ['"p"'], "verification_info": ["{}"], "metadata": ["{}"]
    }  # fmt: skip
    sink = io.BytesIO()
    pq.write_table(pa.table(rows | columns, schema=TASKS_SCHEMA), sink)
    return sink.getvalue()


class TestTasks:
    def test_a_table_survives_the_round_trip_and_keeps_its_digest(self) -> None:
        again = read_tasks(write_tasks(TASKS))
        assert again == TASKS
        assert tasks_digest(again) == tasks_digest(TASKS)

    def test_the_digest_is_over_the_rows_and_not_over_the_file(self) -> None:
        sink = io.BytesIO()
        pq.write_table(pq.read_table(pa.BufferReader(write_tasks(TASKS)), use_threads=False), sink, compression="none")
        assert sink.getvalue() != write_tasks(TASKS)
        assert tasks_digest(read_tasks(sink.getvalue())) == tasks_digest(TASKS)

    def test_the_digest_knows_order_and_every_field(self) -> None:
        changed = [
            TASKS, TASKS[::-1], TASKS[:1], [],
            *([TASKS[0].model_copy(update={field: value}), TASKS[1]] for field, value in {
                "problem_id": "x", "task_type": "x", "prompt": "x", "verification_info": {}, "metadata": {},
            }.items()),
        ]  # fmt: skip
        assert len({tasks_digest(tasks) for tasks in changed}) == len(changed)

    def test_an_id_that_occurs_twice_is_named(self) -> None:
        with pytest.raises(BadTaskTable, match="problem_id 'one' occurs more than once"):
            write_tasks([TASKS[0], TASKS[0]])

    @pytest.mark.parametrize(
        ("columns", "error"),
        [
            ({"prompt": ["no json"]}, "row 0"),
            ({"prompt": ["7"]}, "row 0.*prompt"),
            ({"verification_info": ["[]"]}, "row 0.*verification_info"),
            ({"metadata": ["null"]}, "row 0.*metadata"),
            ({"problem_id": [""]}, "row 0.*problem_id"),
            ({"task_type": ["t" * 64]}, "row 0.*task_type"),
            ({"prompt": ['[{"role": "god", "content": "x"}]']}, "row 0.*role"),
        ],
        ids=str,
    )
    def test_a_bad_row_is_named(self, columns: dict[str, list[Any]], error: str) -> None:
        with pytest.raises(BadTaskTable, match=f"(?s){error}"):
            read_tasks(task_table(**columns))

    def test_another_version_another_schema_and_no_parquet_are_refused(self) -> None:
        table = pq.read_table(pa.BufferReader(write_tasks(TASKS)), use_threads=False)
        for changed, error in (
            (
                table.replace_schema_metadata({"shoal.tasks.version": "2"}),
                "task table version is '2', but this software reads '1'",
            ),
            (table.replace_schema_metadata(None), "task table version is 'none'"),
            (table.drop_columns(["prompt"]), "columns are"),
        ):
            sink = io.BytesIO()
            pq.write_table(changed, sink)
            with pytest.raises(BadTaskTable, match=error):
                read_tasks(sink.getvalue())
        with pytest.raises(BadTaskTable, match="not a Parquet file"):
            read_tasks(b"PAR1nothingPAR1")


class TestRewards:
    def test_a_reward_is_task_reward_minus_alpha_times_the_distance_to_the_target(self) -> None:
        found = total_reward(1.0, 1500, 1000, LengthReward(alpha=0.0003))
        assert found.length_penalty == pytest.approx(0.15)
        assert found.reward == pytest.approx(0.85)
        assert total_reward(1.0, 500, 1000, LengthReward(alpha=0.0003)) == found

    def test_without_a_target_or_a_length_reward_there_is_no_penalty(self) -> None:
        assert total_reward(1.0, 1500, None, LengthReward()).reward == 1.0
        assert total_reward(0.0, 1500, 1000, None).reward == 0.0

    def test_unscorable_is_not_zero(self) -> None:
        assert total_reward(None, 10, 10, LengthReward()).model_dump() == dict.fromkeys(
            ("task_reward", "length_penalty", "reward")
        )


class TestLedger:
    @staticmethod
    def chain(length: int) -> list[Signed[LedgerEntry]]:
        entries, previous = [], GENESIS
        for number in range(length):
            entry = LedgerEntry(
                number=number, previous=previous, run=RUN, unix=float(number),
                fact=Accepted(
                    node=NODE, step=number // 3, submission=number, file=hashlib.sha256(b"%d" % number).hexdigest(),
                    tokens=100, groups=1,
                ),
            )  # fmt: skip
            entries.append(sign(entry, ORCHESTRATOR_KEY))
            previous = document_digest(entry)
        return entries

    @staticmethod
    def is_whole(entries: list[Signed[LedgerEntry]]) -> bool:
        previous = GENESIS
        for number, signed in enumerate(entries):
            entry = signed.verified(ORCHESTRATOR_KEY.public)
            if (entry.number, entry.previous) != (number, previous):
                return False
            previous = document_digest(entry)
        return True

    def test_a_chain_is_whole_and_survives_its_files(self) -> None:
        read = [Signed[LedgerEntry].from_json(signed.to_json()) for signed in self.chain(6)]
        assert self.is_whole(read)

    def test_leaving_out_repeating_or_swapping_entries_breaks_it(self) -> None:
        entries = self.chain(6)
        for changed in (
            entries[1:],
            entries[:2] + entries[3:],
            [*entries[:3], entries[2], *entries[3:]],
            entries[::-1],
        ):
            assert not self.is_whole(changed)

    @pytest.mark.parametrize("field", sorted({"run", "unix", *MalformedFact.model_fields}))
    def test_an_entry_that_was_signed_again_with_another_value_breaks_it(self, field: str) -> None:
        entries = self.chain(4)
        entry = entries[1].document
        values: dict[str, Any] = {
            "run": "other",
            "kind": "rejected",
            "unix": 9.5,
            "node": "f" * 64,
            "digest": "f" * 64,
            "detail": "x",
            "terms": TERMS,
            "invited": {"pool": "workers", "expires_unix": 1},
            "compute": COMPUTE,
            "left_out": [0],
            "looked_at": 1,
            "keys": CHANGED_ROSTER,
            "part": LeasePart(node="f" * 64, submission=1, groups=[0]),
        }
        rewritten = altered(entry, **{field: values.get(field, 77)})
        assert document_digest(rewritten) != document_digest(entry)
        assert not self.is_whole([entries[0], sign(rewritten, ORCHESTRATOR_KEY), *entries[2:]])

    def test_absent_and_zero_are_different_entries(self) -> None:
        with_zero = self.chain(1)[0].document
        without = altered(with_zero, step=None)
        assert json.loads(without.to_json())["step"] is None
        assert document_digest(with_zero) != document_digest(without)
