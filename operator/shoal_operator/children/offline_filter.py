"""The run that samples the tasks of another one for its offline filter: a TrainingRun of mode Generate, owned by that run. Pure.

It has the same tasks, prompts, sampling, pools and store as the run, with `samples` completions a task. It ends before the run's own parts
begin. Its counts are read by the run's prepare (`shoal.environments.offline_filter`).
"""

from shoal.contracts.datasets import FILTER_DATASET, GenerateSettings, filter_run
from shoal.contracts.recipe import INTELLECT_2
from shoal.contracts.task_source import TaskSource
from shoal.contracts.trainer import TrainerSettings
from shoal_operator.api import API_VERSION, TrainingRun, TrainingRunSpec
from shoal_operator.api.pods import Gpus
from shoal_operator.api.training_run import ControlPlaneTemplate
from shoal_operator.api.validator import ValidatorTemplate
from shoal_operator.children import names
from shoal_operator.children.own_kinds import References, validation_of
from shoal_operator.engine.cluster import Object

COMPONENT = "filter"


def sampled_tasks(tasks: TaskSource) -> TaskSource:
    """The tasks that the filter's run samples: all, or of a mixture the sources whose filters need it."""
    if tasks.mixture is None:
        return tasks.model_copy(update={"offline_filter": None, "curriculum": None})
    sampled = [each.model_copy(update={"offline_filter": None}) for each in tasks.mixture if each.is_sampled_first]
    return tasks.model_copy(update={"mixture": sampled})


def filter_training_run(run: TrainingRun, references: References, *, suspend: bool) -> Object | None:
    """The filter's run, or None when the run has no filter. Suspended, it keeps its counts and nothing else."""
    spec, rule = run.spec, run.spec.tasks.sampled_filter
    if rule is None:
        return None
    validator = (spec.validator or ValidatorTemplate()).model_copy(
        update={"validation": validation_of(run, references)}
    )
    sampled = TrainingRunSpec(
        mode="Generate",
        model=rule.model or spec.model,
        tasks=sampled_tasks(spec.tasks),
        seed=spec.seed,
        # A file holds as many tasks as in the run, so that one that fits there fits here too.
        # What is learnt with, PRIME's reward model, VinePPO's values or Muon, has no part in sampling, and mode Generate refuses it.
        recipe=spec.recipe.model_copy(
            update={
                "group_size": rule.samples,
                "optimizer_steps": 1,
                "algorithm": INTELLECT_2,
                "muon": None,
            }
        ),
        sampling=spec.sampling,
        length_reward=spec.length_reward,
        generate=GenerateSettings(dataset=FILTER_DATASET, traces_per_problem=1),
        storage=spec.storage,
        store_volume=spec.store_volume and spec.store_volume.model_copy(update={"retain": False}),
        data_claim=spec.data_claim,
        prepare=spec.prepare,
        # The collector trains nothing: it has no GPU, and no setting that needs one.
        trainer=spec.trainer.model_copy(
            update={
                "replicas": 1,
                "processes_per_replica": None,
                "islands": None,
                "gpu": Gpus(),
                "settings": TrainerSettings(),
            }
        ),
        broadcast=spec.broadcast,
        # It says which tasks the published model solves.
        inference_pools=[pool.model_copy(update={"quantization": None}) for pool in spec.inference_pools],
        relay_server=spec.relay_server,
        validator=validator,
        runner=spec.runner,  # strangers' programs run in the sandbox that the run chose
        # Without exposure: strangers' machines join the run itself.
        control_plane=ControlPlaneTemplate(
            resources=spec.control_plane.resources,
            redis_volume=spec.control_plane.redis_volume,
            pod_template=spec.control_plane.pod_template,
        ),
        images=spec.images,
        failure_policy=spec.failure_policy,
        progress_deadline_seconds=spec.progress_deadline_seconds,
        queue_name=spec.queue_name,
        queue_priority=spec.queue_priority,
        suspend=suspend,
    )
    name = run.metadata.name
    return {
        "apiVersion": API_VERSION,
        "kind": "TrainingRun",
        "metadata": {"name": filter_run(name), "labels": names.labels(name, COMPONENT)},
        "spec": sampled.model_dump(mode="json", by_alias=True, exclude_none=True),
    }
