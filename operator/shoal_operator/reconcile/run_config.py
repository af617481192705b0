"""Reads the run's ConfigMap for kinds that mount it, so that their pods start anew when what they read there changes."""

from pydantic import ValidationError

from shoal.contracts.run import RunConfig
from shoal_operator.children.training_run import config_hashes
from shoal_operator.engine.cluster import Object


def read_config_hashes(config_map: Object | None) -> dict[str, str] | str:
    """Digest of the configuration by component, or in words why there is none."""
    if config_map is None:
        return "does not exist; the TrainingRun makes it"
    text = config_map.get("data", {}).get("run.json")
    if text is None:
        return "has no entry run.json; the TrainingRun repairs it"
    try:
        return config_hashes(RunConfig.from_json(text))
    except ValidationError as error:
        return f"run.json is wrong: {error.error_count()} fields; the TrainingRun repairs it"
