"""A run as `shoal up` leaves it, for tests of the page: steps, judged files with real Parquet, a real ledger, and strangers' text that is hostile.

Every document is made by the code that makes it in a run; times are near now, so that leases, uploads and verdicts are in order.
"""

import hashlib
from dataclasses import replace
from pathlib import Path

from run_documents import RunFolder, part, progress, step_metrics
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from ledger_samples import fact
from samples import rollout
from shoal.contracts import keys
from shoal.contracts.rollouts import RolloutMetadata, write_rollouts
from shoal.contracts.signed import sign
from shoal.contracts.verdicts import RowReward, Verdict
from shoal.ledger.checkpoints import Checkpoints
from shoal.ledger.source import LedgerSource, Trust
from shoal.ledger.writer import LedgerWriter
from shoal.report.snapshot import Snapshot
from shoal.sampling.draw import beacon_commitment
from shoal.ui.rollouts import TOKENIZER_FILE

HONEST, CHEAT = "a1" * 32, "c2" * 32
MARKUP = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
ESCAPES = "\x1b[2J\u202eevil"
PROMPT, COMPLETION = "12+34=", f"<2+4+0=6>46\n{MARKUP}{ESCAPES} äö"
UNKNOWN_TOKEN = 100_000
GIVEN = RowReward(task_reward=1.0, length_penalty=0.0, reward=1.0)


def tokenizer() -> Tokenizer:
    """A byte-level tokenizer in which umlauts are two tokens."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made.train_from_iterator([], trainers.BpeTrainer(vocab_size=256, initial_alphabet=alphabet, show_progress=False))
    return made


class UiRun(RunFolder):
    """Three trained steps; an accepted file of an honest node, a rejected one of a cheat, one that is no Parquet."""

    def __init__(self, runs_dir: Path) -> None:
        super().__init__(runs_dir, steps_total=10)
        self.words = tokenizer()
        self.store.put(TOKENIZER_FILE, self.words.to_str().encode())
        writer = LedgerWriter(self.store, "demo", self.role_keys["orchestrator"])
        writer.append(fact("beacon-committed", step=0, digest=beacon_commitment(bytes(32))))
        for number, node in enumerate((HONEST, CHEAT)):
            writer.append(fact("node-joined", node=node, detail=f"{number:032d}"))
        writer.append(fact("beacon-revealed", step=0, digest=beacon_commitment(bytes(32))))
        self.accepted = self._file(HONEST, 0, self._parquet(HONEST, 0), accepted=True)
        writer.append(fact(
            "accepted", node=HONEST, step=0, submission=0, digest=self.accepted.sha256, tokens=700, groups=1, signal_groups=1
        ))  # fmt: skip
        self.rejected = self._file(CHEAT, 1, self._parquet(CHEAT, 1))
        self.garbage = self._file(CHEAT, 2, b"PAR1 this is no Parquet file PAR1")
        detail = f"computation: {MARKUP}{ESCAPES}"
        writer.append(fact("rejected", node=CHEAT, step=0, submission=1, digest=self.rejected.sha256, detail=detail))
        writer.append(fact("node-evicted", node=CHEAT, detail="file was rejected"))
        Checkpoints(writer, self.config.roster).write_due(0.0, complete=True)
        writer.append(fact("node-dead", node=HONEST))  # under no checkpoint yet
        for step in range(3):
            self.add_step(step_metrics(step, reward=0.2 + step / 10, warnings=[MARKUP] if step == 2 else []))

    def _parquet(self, node: str, submission: int) -> bytes:
        tokens = [*self.words.encode(COMPLETION).ids, UNKNOWN_TOKEN]
        row = rollout(
            run="demo", step=0, node=node, submission=submission, policy_version=0, problem_id=f"add{MARKUP}",
            prompt_tokens=self.words.encode(PROMPT).ids, completion_tokens=tokens,
            completion_logprobs=[-0.01 * at for at in range(len(tokens))],
            completion_mask=[at != 3 for at in range(len(tokens))], task_type="arithmetic",
        )  # fmt: skip
        return write_rollouts([row, replace(row, sample_index=1)], RolloutMetadata("tiny", "0" * 64, "1" * 64, MARKUP))

    def _file(self, node: str, submission: int, data: bytes, *, accepted: bool = False) -> Verdict:
        """Lease, upload, submission and verdict of one file."""
        digest = hashlib.sha256(data).hexdigest()
        self.store.put(keys.lease(0, node, submission), b"{}")
        self.store.put(keys.upload(node, digest), data)
        self.store.put(keys.submission(node, digest), b"{}")
        fields = {
            "run": "demo",
            "node": node,
            "lease": "ab" * 16,
            "step": 0,
            "submission": submission,
            "sha256": digest,
        }
        fields |= {"validator": "demo-validator-0", "check_seconds": 1.5, "rows": 2, "proof_rows": 2}
        verdict = (
            Verdict(**fields, outcome="accept", policy_version=0, completion_tokens=700, rewards=[GIVEN] * 2)
            if accepted
            else Verdict(**fields, outcome="reject", reason="computation", evidence=MARKUP + ESCAPES)
        )  # fmt: skip
        self.store.put(keys.verdict(node, digest), sign(verdict, self.role_keys["validator"]).to_json())
        return verdict

    @property
    def source(self) -> LedgerSource:
        return LedgerSource(self.store, Trust(self.config.run_key, self.config.roster, "the test", given=True))

    @property
    def snapshot(self) -> Snapshot:
        """As `shoal up` would tell it: one part that is ready, one that failed with a stranger's words."""
        parts = (
            part(), part("demo-pool-0", "worker", ready=False, phase="Failed", last_exit=1, message=MARKUP),
            part("demo-relay-0", "sync"), part("demo-relay-0", "nginx", restarts=2),
        )  # fmt: skip
        return Snapshot(unix=2000.0, run="demo", steps_total=10, parts=parts, progress=progress(steps_total=10))


class EmptyRun(RunFolder):
    """A run that has just been started: nothing in its store."""

    @property
    def source(self) -> LedgerSource:
        return LedgerSource(self.store, Trust(self.config.run_key, self.config.roster, "the test", given=True))

    @property
    def snapshot(self) -> Snapshot:
        return Snapshot(unix=2000.0, run="demo", steps_total=10, message="makes the base model")
