"""The validators' queue in Redis: who checks which file, and when another validator gets a check.

A sorted set holds file names by the time at which they may be claimed. A claim moves the time to its deadline by compare-and-set, so a validator that
died needs no cleaning up: its file becomes claimable by itself. One that is still at work renews its claim. A claim that ran out counts as an
inconclusive check, since the file may be what ends validators. Called by `services` (claims, verdicts), `uploads` (a new file) and `recovery`.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import cast

import redis
from pydantic import Field

from shoal.contracts.base import Contract, NodeId, Sha256Hex, unset
from shoal.contracts.protocol import PrintableText
from shoal.contracts.verdicts import RejectReason
from shoal.orchestrator.record_cache import RecordCache
from shoal.orchestrator.work.records import SubmissionRecord
from shoal.retries import doubled
from shoal.telemetry import get_logger

LOOK_AHEAD = 64
"""Files looked at at once for a claim: those that this validator may not have are passed over."""
FIRST_BACKOFF_SECONDS = 2.0
LONGEST_BACKOFF_SECONDS = 60.0
"""An inconclusive check (weights not there yet, say) is tried again after 2, 4, 8 ... 60 seconds."""

_MOVE_IF_UNCHANGED = """
local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
if score == false or tonumber(score) ~= tonumber(ARGV[2]) then return 0 end
redis.call('ZADD', KEYS[1], 'XX', ARGV[3], ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[4])
return 1
"""

_PUT_BACK = """
redis.call('HSET', KEYS[2], ARGV[1], ARGV[3])
redis.call('ZADD', KEYS[1], ARGV[2], ARGV[1])
"""


MOST_READINGS = 2
"""Attempts of one validator at a file whose readers all died; the next attempt is another validator's. A hostile file may cost a minute each time."""


class OpinionNote(Contract):
    """The part of an opinion that a job remembers: who, which reason, and the digest of the verdict, so that a repeated request does not count
    twice."""

    validator: PrintableText
    reason: RejectReason
    digest: Sha256Hex
    key: NodeId | None = Field(default=None, exclude_if=unset, description="the validator's own; None: it has none")

    @property
    def voter(self) -> tuple[str, str]:
        """Name and key; neither counts twice."""
        return self.validator, self.key or self.validator


class Job(Contract):
    """A submission that waits for a verdict."""

    record: SubmissionRecord
    claimed_by: PrintableText = ""
    inconclusive: int = Field(default=0, description="checks without a result, and claims that ran out")
    opinions: list[OpinionNote] = Field(default_factory=list)
    prefer_another_until_unix: float = 0.0

    @property
    def given_up_by(self) -> set[str]:
        """Validators that could not read the file as often as they may try."""
        readings = Counter(note.validator for note in self.opinions if note.reason == "unread")
        return {validator for validator, count in readings.items() if count >= MOST_READINGS}

    @property
    def name(self) -> str:
        return f"{self.record.node}/{self.record.sha256}"


def backoff_seconds(inconclusive: int) -> float:
    """Pause before the next check after this number of inconclusive ones."""
    return doubled(inconclusive - 1, FIRST_BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS)


def suits(job: Job, validator: str, now_unix: float) -> bool:
    """Whether this validator may check the file now: one that rejected it waits until others had their chance, one that gave it up forever."""
    if validator in job.given_up_by:
        return False
    return now_unix >= job.prefer_another_until_unix or validator not in {note.validator for note in job.opinions}


class ValidationQueue:
    """Jobs under `<prefix>:jobs` (hash) and their times under `<prefix>:queue` (sorted set)."""

    def __init__(self, client: redis.Redis, prefix: str) -> None:
        self._redis = client
        self._jobs = f"{prefix}:jobs"
        self._queue = f"{prefix}:queue"
        self._move = client.register_script(_MOVE_IF_UNCHANGED)
        self._put_back = client.register_script(_PUT_BACK)
        self._parsed = RecordCache(Job.from_json)

    def add(self, job: Job, now_unix: float) -> None:
        """Queue a file; one that is queued already keeps its place and its claim."""
        self._redis.hsetnx(self._jobs, job.name, job.to_json())
        self._redis.zadd(self._queue, {job.name: now_unix}, nx=True)

    def get(self, node: str, sha256: str) -> Job | None:
        data = self._redis.hget(self._jobs, f"{node}/{sha256}")
        return Job.from_json(data) if data is not None else None

    def all(self) -> list[Job]:
        return self._parsed.all(self._redis.hgetall(self._jobs))

    def size(self) -> int:
        return int(self._redis.hlen(self._jobs))

    def oldest_unix(self) -> float | None:
        """When the file that has waited longest was received; None while nothing waits."""
        return min((job.record.received_unix for job in self.all()), default=None)

    def discard(self, node: str, sha256: str) -> None:
        """Take a file out, claimed or not; one that is not there is fine."""
        self._redis.zrem(self._queue, f"{node}/{sha256}")
        self._redis.hdel(self._jobs, f"{node}/{sha256}")

    def again(self, job: Job, available_unix: float) -> None:
        """Put a changed job back, claimable from `available_unix` by a new claim: no renewal of the old one changes it."""
        freed = job.model_copy(update={"claimed_by": ""})
        self._put_back(keys=[self._queue, self._jobs], args=[job.name, repr(available_unix), freed.to_json()])

    def claim(
        self, validator: str, now_unix: float, claim_seconds: float, versions: Collection[int] = ()
    ) -> Job | None:
        """A file that suits this validator, for `claim_seconds`; None when there is none.

        It is the one of `versions` that waits longest, where any of the first files is of these, else the one that waits longest. A file whose
        node did not say its version is of none: silence must not make a validator load another version before it has to.
        """
        others: list[tuple[Job, float]] = []
        for count, (name, score) in enumerate(self._waiting(now_unix)):
            if others and count >= LOOK_AHEAD:
                break
            data = self._redis.hget(self._jobs, name)
            if data is None:  # settled between the two reads
                self._redis.zrem(self._queue, name)
                continue
            job = Job.from_json(data)
            if not suits(job, validator, now_unix):
                continue
            if versions and job.record.policy_version not in versions:
                others.append((job, score))
            elif claimed := self._claim(job, score, validator, now_unix, claim_seconds):
                return claimed
        for job, score in others:
            if claimed := self._claim(job, score, validator, now_unix, claim_seconds):
                return claimed
        return None

    def _claim(self, job: Job, score: float, validator: str, now_unix: float, claim_seconds: float) -> Job | None:
        """The job, claimed; None where it changed since it was read, or has to pause because its last claim ran out.

        That is counted here. The pause begins with the last sign of life, so that a claim of a minute has served it when it runs out.
        """
        claimed, until_unix = job.model_copy(update={"claimed_by": validator}), now_unix + claim_seconds
        if job.claimed_by:
            count = job.inconclusive + 1
            free_unix = score - claim_seconds + backoff_seconds(count)
            claimed = claimed.model_copy(update={"inconclusive": count})
            if now_unix < free_unix:
                claimed, until_unix = claimed.model_copy(update={"claimed_by": ""}), free_unix
        moved = self._move(
            keys=[self._queue, self._jobs], args=[job.name, repr(score), repr(until_unix), claimed.to_json()]
        )
        if moved and job.claimed_by:
            get_logger().warning(
                "a claim ran out", validator=job.claimed_by, file=job.name, without_result=claimed.inconclusive
            )
        return claimed if moved and claimed.claimed_by else None

    def _waiting(self, now_unix: float) -> Iterator[tuple[str, float]]:
        """Names and times of what may be claimed, the longest waiting first. What is claimed meanwhile may hide some from this look."""
        seen = 0
        while True:
            found = self._redis.zrangebyscore(
                self._queue, "-inf", now_unix, start=seen, num=LOOK_AHEAD, withscores=True
            )
            page = cast(Sequence[tuple[str, float]], found)
            yield from page
            seen += len(page)
            if len(page) < LOOK_AHEAD:
                return

    def renew(self, validator: str, node: str, sha256: str, until_unix: float) -> bool:
        """Let a validator keep its claim until then. False for a file that is not in the queue, that another one claimed, or that was put back.

        A file of which nothing is known, as of all after Redis was lost, is its again. One with an opinion, or with an inconclusive check, waits for
        a claim: a renewal that arrives after its own verdict must not hide the file; nor may a check of few rows continue where every row is to be
        checked.
        """
        name = f"{node}/{sha256}"
        score = self._redis.zscore(self._queue, name)  # before the job: a claim that comes between changes it
        data = self._redis.hget(self._jobs, name)
        if data is None or score is None:
            return False
        job = Job.from_json(data)
        unknown = not job.claimed_by and not job.opinions and not job.inconclusive
        if job.claimed_by != validator and not unknown:
            return False
        claimed = job.model_copy(update={"claimed_by": validator})
        return bool(
            self._move(
                keys=[self._queue, self._jobs], args=[name, repr(float(score)), repr(until_unix), claimed.to_json()]
            )
        )
