"""Object keys: the one place that says where something lies in the object store.

Every function gives the part after `<prefix>/<run>/`; `storage.open_store` adds that prefix. Version and step numbers are zero-padded so that the
order of the names is the order of the numbers.
"""

import re

VERSION_PATTERN = re.compile(r"v([0-9]{6})")

PREPARED = "prepared.json"
FILTER_REPORT = "filter.json"
TASK_REPORT = "tasks.json"
BASE_MODEL = "models/base/"
FINAL_MODEL = "models/final/"
FINAL_SEAL = "models/final.json"
UPLOADS = "uploads/"
VERDICTS = "verdicts/"
LEDGER = "ledger/"
CHECKPOINTS = "checkpoints/"
SEGMENTS = "segments/"
ROSTER = "roster.json"
SETTINGS = "run.json"
"""The run's configuration, signed by its orchestrator, for whoever recomputes the run."""
KEYS_NOTICE = "keys.json"
STEPS = "steps/"
BEACONS = "beacons/"
VERSIONS = "versions/"
TRAINER_STATE = "trainer/state/"
MADE_VERSIONS = "trainer/made/"
STAGING = "staging/"
ISLANDS = "islands/"
LEASES = "leases/"
LEASE_FILES = "lease-files/"
SUBMISSIONS = "submissions/"
WAITING = "waiting/"
EXPIRED = "expired/"
INDEXED = "indexed.json"
"""Says that every file without a concluded verdict has its name under `waiting/`, and every late one under `expired/`."""
OPINIONS = "opinions/"
SFT = "sft/"
SFT_MANIFEST = "sft/manifest.json"
EVALUATIONS = "evaluations/"
BEST_VERSION = "evaluations/best.json"
SERVING = "serving/"
PROMOTION_PATTERN = re.compile(r"serving/([a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?)/([0-9]{6})\.json")


def version_name(version: int) -> str:
    """`v000007`; raises ValueError outside 0..999999."""
    if not 0 <= version <= 999_999:
        raise ValueError(f"a policy version is 0 to 999999, got {version}")
    return f"v{version:06d}"


def parse_version(name: str) -> int | None:
    """The number in a name such as `v000007`, or None when it is not a version's name."""
    found = VERSION_PATTERN.fullmatch(name)
    return int(found.group(1)) if found else None


def version(number: int) -> str:
    return f"{VERSIONS}{version_name(number)}/"


def version_open(number: int) -> str:
    return f"{version(number)}open.json"


def version_weights(number: int) -> str:
    return f"{version(number)}weights.json"


def version_shard(number: int, index: int, *, beside: bool = False) -> str:
    """`beside`: of the delta that lies beside a version in full, here and below."""
    return f"{version(number)}{shard_name(index, beside=beside)}"


def version_descriptor(number: int, index: int, *, beside: bool = False) -> str:
    return f"{version(number)}{descriptor_name(index, beside=beside)}"


def shard_name(index: int, *, beside: bool = False) -> str:
    return f"{'beside-' if beside else ''}{index:05d}.bin"


def descriptor_name(index: int, *, beside: bool = False) -> str:
    return f"{'beside-' if beside else ''}{index:05d}.json"


def seal_name(*, beside: bool = False) -> str:
    """Of the file that stands where all shards are there. Both seals are the same signed `WeightsManifest`."""
    return "beside.json" if beside else "weights.json"


def island(name: str) -> str:
    """Where an island that publishes no versions keeps what a trainer keeps: its states and reports."""
    return f"{ISLANDS}{name}"


def trainer_state(number: int) -> str:
    return f"{TRAINER_STATE}{version_name(number)}/"


def made_version(number: int) -> str:
    """What the trainer knew when it made a version, beside the weights; written before the version is handed over."""
    return f"{MADE_VERSIONS}{version_name(number)}.json"


def staging(node: str, lease: str) -> str:
    return f"{STAGING}{node}/{lease}"


def upload(node: str, sha256: str) -> str:
    return f"{UPLOADS}{node}/{sha256}.parquet"


def verdict(node: str, sha256: str) -> str:
    return f"{VERDICTS}{node}/{sha256}.json"


def lease(step: int, node: str, submission: int) -> str:
    """One leased submission number; created once, so that no number is given twice whatever else is lost."""
    return f"{LEASES}{step:06d}/{node}/{submission:06d}.json"


def lease_file(lease: str) -> str:
    """The one file that a lease hands in; created once, so that of two orchestrators that are given two files one decides."""
    return f"{LEASE_FILES}{lease}.json"


def submission(node: str, sha256: str) -> str:
    """Which lease an uploaded file belongs to; its existence puts the file into the validators' queue."""
    return f"{SUBMISSIONS}{node}/{sha256}.json"


def waiting(step: int, node: str, sha256: str) -> str:
    """A submitted file whose verdict is not concluded; removed when it is. So recovery reads what is open, however many files there were."""
    return f"{WAITING}{step:06d}/{node}/{sha256}.json"


def expired(node: str, sha256: str) -> str:
    """A file that came too late: the ledger has no entry of it, and its verdict need not be read to count it."""
    return f"{EXPIRED}{node}/{sha256}.json"


def opinions(node: str, sha256: str) -> str:
    """Statistical rejects of one file that wait for a second validator to find the same."""
    return f"{OPINIONS}{node}/{sha256}/"


def step_batch(step: int) -> str:
    return f"{STEPS}{step:06d}/batch.json"


def beacon(number: int) -> str:
    """The revealed beacon of a piece of work, for whoever draws its prompts again."""
    return f"{BEACONS}{number:06d}.json"


def step_metrics(step: int) -> str:
    return f"{STEPS}{step:06d}/metrics.json"


def evaluation(version: int, benchmark: str) -> str:
    """The result of one version on one benchmark; written once, when no more work is handed out for it."""
    return f"{EVALUATIONS}{version_name(version)}/{benchmark}.json"


def promotions(tag: str) -> str:
    """The moves of one tag."""
    return f"{SERVING}{tag}/"


def promotion(tag: str, number: int) -> str:
    """One move of a tag; created once, so that of two who move it at once one does. The newest says what the tag names."""
    return f"{promotions(tag)}{number:06d}.json"


def parse_promotion(key: str) -> tuple[str, int] | None:
    """Tag and number of a move, or None for another key."""
    found = PROMOTION_PATTERN.fullmatch(key)
    return (found.group(1), int(found.group(2))) if found else None


def ledger_entry(number: int) -> str:
    return f"{LEDGER}{number:020d}.json"


def parse_ledger_entry(key: str) -> int | None:
    """The number in the key of an entry of the ledger, or None when it is no such key."""
    digits = key.removeprefix(LEDGER).removesuffix(".json")
    number = int(digits) if digits.isascii() and digits.isdigit() else -1
    return number if number >= 0 and key == ledger_entry(number) else None


def ledger_checkpoint(size: int) -> str:
    """The signed checkpoint over the first `size` entries of the ledger."""
    return f"{CHECKPOINTS}{size:020d}.json"


def ledger_segment(number: int) -> str:
    """Entries `number * SEGMENT_ENTRIES` and so on of the ledger, one JSON document a line, compressed with zstd."""
    return f"{SEGMENTS}{number:012d}.jsonl.zst"


def task_table(digest: str) -> str:
    return f"tasks/{digest}.parquet"


def judged_tasks(digest: str) -> str:
    """Which of some tasks can be judged; `digest` is of the tasks and the environment."""
    return f"tasks/judged/{digest}.json"


def package(sha256: str) -> str:
    """The wheel with this digest, of an environment or of what one needs."""
    return f"packages/{sha256}.whl"


def sft_shard(name: str) -> str:
    """Rows of a data set that the run learns, as token ids."""
    return f"{SFT}{name}"


def dataset(name: str) -> str:
    """The folder of a data set that a run of mode Generate writes."""
    return f"datasets/{name}/"


def dataset_card(name: str) -> str:
    """`card.json`: seals a data set, written last."""
    return f"{dataset(name)}card.json"


def dataset_part(name: str, number: int) -> str:
    return f"{dataset(name)}part-{number:05d}.parquet"


def dataset_problems(name: str, number: int) -> str:
    """How often each of some problems was solved."""
    return f"{dataset(name)}problems-{number:05d}.parquet"
