"""What was sampled for one slice of the task table: the accepted file of its step, checked against what was accepted.

In: the store (`steps/<step>/batch.json`, `uploads/`, `verdicts/`) and a step number. Out: rollouts with the validators' task rewards, those of
prompts that this slice answers for alone. The file's SHA-256 is the one in the batch and the verdict is signed and about these bytes; what the
file says about rewards is never looked at. Called by `collector`.

Memory: a slice's rows are held as rows of Python until its data set is written, 400 bytes a token at most. The file is `groupsPerSubmission` tasks,
so 64 rows of 32,768 tokens take 0.8 GB; rows of prompts that another slice answers for are dropped as they are read.
"""

from pydantic import ValidationError

from shoal.contracts import keys
from shoal.contracts.rollouts import BadRollouts, Rollout
from shoal.contracts.signed import BadSignature, Signed, Signer
from shoal.contracts.steps import BatchFile, StepBatch
from shoal.contracts.verdicts import Verdict
from shoal.storage import NotFound, Store
from shoal.storage.rollout_files import OtherBytes, rows_of_file

Judged = tuple[Rollout, float | None]
"""A rollout with its task reward; None where the validator could not score it."""


class BadSlice(ValueError):
    """A slice's file or verdict is not what was accepted; the message says which and why."""


def read_slice(store: Store, batch: StepBatch, validator_key: Signer, wanted: range) -> list[Judged]:
    """Rollouts of the prompts `wanted` (rows of the task table), group by group in table order. Raises BadSlice.

    `StoreUnavailable` is let through: that the store is away is not a fault of the data.
    """
    kept = [row for file in batch.files for row in _read_file(store, batch, file, validator_key, wanted)]
    missing = set(wanted) - {rollout.prompt_index for rollout, _ in kept}
    if missing:
        raise BadSlice(f"step {batch.step}: no completions of row {min(missing)} of the task table")
    return sorted(kept, key=lambda row: (row[0].prompt_index, row[0].sample_index))


def _read_file(store: Store, batch: StepBatch, file: BatchFile, validator_key: Signer, wanted: range) -> list[Judged]:
    key = keys.upload(file.node, file.sha256)
    try:
        verdict = Signed[Verdict].from_json(store.get(keys.verdict(file.node, file.sha256))).verified(validator_key)
        about = (verdict.run, verdict.step, verdict.node, verdict.sha256, verdict.outcome)
        if about != (batch.run, batch.step, file.node, file.sha256, "accept"):
            raise BadSlice(f"{keys.verdict(file.node, file.sha256)} is not an accept of this file: it is about {about}")
        kept, count, used = list[Judged](), 0, set(file.prompt_indices).intersection(wanted)
        with rows_of_file(store, key, file.sha256) as rows:
            for number, row in enumerate(rows):
                count += 1
                if row.prompt_index in used and number < len(verdict.rewards):
                    kept.append((row, verdict.rewards[number].task_reward))
    except NotFound as error:
        raise BadSlice(f"step {batch.step}: {error}, but batch.json lists its file") from error
    except (BadSignature, ValidationError) as error:
        raise BadSlice(f"{keys.verdict(file.node, file.sha256)}: {error}") from error
    except OtherBytes as error:
        raise BadSlice(str(error)) from error
    except BadRollouts as error:
        raise BadSlice(f"{key}: {error}") from error
    if not count == file.rows == len(verdict.rewards):
        raise BadSlice(f"{key} has {count} rows, batch.json {file.rows}, the verdict {len(verdict.rewards)}")
    return kept
