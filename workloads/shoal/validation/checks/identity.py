"""Whose file this is: run, node, step, submission and policy version are those of the lease (INTELLECT-2, section
2.3.3, "value bounds" and sanity checks).
"""

from collections.abc import Sequence

from shoal.contracts.rollouts import digest_of_weights
from shoal.validation.facts import Facts, File, Finding, reject


def check(file: File, facts: Facts) -> Finding | None:
    """Compare the file with the lease that it came under. A version older than the step allows is late, not false."""
    job, row, metadata = file.job, file.rows[0], file.metadata
    for name, found, leased in (
        ("run", row.run, job.run),
        ("node", row.node, job.node),
        ("step", row.step, job.step),
        ("submission", row.submission, job.submission),
        ("model", metadata.model, facts.model_id),
        ("environment_digest", metadata.environment_digest, facts.environment_digest),
        ("quantization", metadata.quantization, facts.quantization),
    ):
        if found != leased:
            return reject("identity", f"{name} is {str(found)[:80]!r}, the lease is for {str(leased)[:80]!r}")
    if job.policy_version not in (None, row.policy_version):
        return reject(
            "identity",
            f"policy_version is {row.policy_version}, the node said {job.policy_version} when it handed it in",
        )
    if row.policy_version > job.max_version:
        return reject(
            "identity", f"policy_version is {row.policy_version}, step {job.step} accepts up to {job.max_version}"
        )
    if row.policy_version < job.min_version:
        return Finding(
            "expired", None, f"policy_version is {row.policy_version}, step {job.step} accepts from {job.min_version}"
        )
    return _check_versions(file, facts) if row.segment_versions else None


def _check_versions(file: File, facts: Facts) -> Finding | None:
    """A file with segments is of a run that has such, of several versions, and its step accepts each."""
    oldest, newest = file.versions[0], file.versions[-1]
    if not facts.several_versions:
        return reject("identity", "the file has segments, but rows of this run are of one version (rollouts.versions)")
    if newest > file.job.max_version:
        return reject(
            "identity", f"a segment is of version {newest}, step {file.job.step} accepts up to {file.job.max_version}"
        )
    if oldest != file.policy_version or oldest == newest:
        return reject(
            "identity",
            f"policy_version is {file.policy_version}, segments are of versions {oldest} to {newest}: allowed are several, the oldest of them named",
        )
    return None


def check_weights(file: File, weights_digests: Sequence[str]) -> Finding | None:
    """The digest in the file's metadata is that of the claimed versions, whose own are given in their order."""
    claimed, wanted = file.metadata.weights_digest, digest_of_weights(weights_digests)
    if claimed != wanted:
        versions = ", ".join(map(str, file.versions)) if file.only is None else str(file.only)
        return reject("identity", f"weights_digest is {claimed[:64]!r}, version {versions} has {wanted!r}")
    return None
