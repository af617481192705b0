"""Children that judge programs: a StatefulSet of runners. They have no key, no configuration and no way out, and only validators and workers may
call them. Pure.
"""

from shoal_operator.api import TrainingRun
from shoal_operator.api.runner import RunnerTemplate
from shoal_operator.children import names
from shoal_operator.children.pods import Container, http_probes, image_of, pod_template
from shoal_operator.children.workloads import disruption_budget, headless_service, set_selector, stateful_set
from shoal_operator.engine.cluster import Object

COMPONENT = "runner"

JUDGE_PROGRAMS = frozenset({"code", "interpreter"})
"""Shipped environments that run programs, of answers or of calls. Of others nothing is known here: whoever brings one says `spec.runner`."""


def runner_count(run: TrainingRun) -> int:
    """Runners that the run has: as many as it says, else one where an environment of its judges programs."""
    if run.spec.runner is not None:
        return run.spec.runner.replicas
    if run.spec.mode == "SFT":
        return 0
    benchmarks = run.spec.evaluation.benchmarks if run.spec.evaluation is not None else []
    used = {each.environment for each in run.spec.tasks.origins} | {each.tasks.environment for each in benchmarks}
    return 1 if used & JUDGE_PROGRAMS else 0


def runner_children(run: TrainingRun, *, work: bool) -> list[Object]:
    """Headless Service, StatefulSet and disruption budget of a run's runners; none for a run without."""
    count = runner_count(run)
    if count == 0:
        return []
    name, owner, spec = names.runner(run.metadata.name), run.metadata.name, run.spec.runner or RunnerTemplate()
    port = names.PORTS["runner"]
    container = Container(
        name="runner",
        image=image_of("protocol", run.spec.images),
        command=["python", "-m", "shoal.rewards.runner"],
        role="runner",
        port=port,
        probes=http_probes(port),
        resources=spec.resources,
    )
    template = pod_template(
        owner, COMPONENT, [container], grace_seconds=20, placement=spec.pod_template, images=run.spec.images
    )
    return [
        headless_service(name, owner, COMPONENT, {"runner": port}),
        stateful_set(name, owner, COMPONENT, count if work else 0, template, claims={}),
        disruption_budget(name, owner, COMPONENT, set_selector(name, owner, COMPONENT)),
    ]
