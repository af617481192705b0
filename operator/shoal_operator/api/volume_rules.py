"""CEL rules of volumes. Used by `rules`."""

from shoal_operator.api.rule import Rule

VOLUME_RULES: tuple[Rule, ...] = (
    Rule(
        model="TrainingRunSpec",
        expression="!has(self.storeVolume) || !has(self.storage.s3) && !has(self.storage.azure) && !has(self.storage.gcs)",
        message="goes with a folder store: with storage.s3, storage.azure or storage.gcs the run's store has no volume",
        field="storeVolume",
        good={"storeVolume": {"storageClassName": "nfs"}, "storage": {"prefix": "shoal"}},
        bad={
            "storeVolume": {"storageClassName": "nfs"},
            "storage": {"s3": {"endpoint": "http://s3", "bucket": "rollouts", "credentialsSecret": "s3"}},
        },
    ),
)
