"""Whose file this is: run, node, step, submission and policy version are those of the lease (INTELLECT-2, section
2.3.3, "value bounds" and sanity checks).
"""

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
    return None


def check_weights(file: File, weights_digest: str) -> Finding | None:
    """The digest in the file's metadata is that of the claimed version."""
    claimed = file.metadata.weights_digest
    if claimed != weights_digest:
        return reject(
            "identity", f"weights_digest is {claimed[:64]!r}, version {file.policy_version} has {weights_digest!r}"
        )
    return None
