"""Runners on one machine: a run that asks for them has them as pods, and programs are judged there, through a kill too."""

import os
import signal

from local_bench import Bench

from shoal.rewards.sandbox import Program
from shoal.rewards.sandbox.remote import RunnerPool
from shoal_operator.api import TrainingRun
from shoal_operator.children.runner import runner_children

RUN = TrainingRun.model_validate(
    {
        "apiVersion": "shoal.dev/v1alpha1",
        "kind": "TrainingRun",
        "metadata": {"name": "sums"},
        "spec": {
            "model": {"path": "/models/base"},
            "tasks": {"environment": "code"},
            "steps": 4,
            "recipe": {"promptsPerStep": 8, "groupSize": 4, "optimizerSteps": 2},
            "runner": {"replicas": 1},
        },
    }
)


def test_a_runner_pod_judges_programs_and_is_started_again(bench: Bench) -> None:
    for child in runner_children(RUN, work=True):
        bench.cluster.apply(child)
    bench.until("the runner is ready", lambda: bench.pod("sums-runner-0") and bench.pod("sums-runner-0").ready)
    pool = RunnerPool(bench.cluster.addresses("sums", 0, runners=1).runners)
    assert pool.run(Program("print(6 * 7)")).stdout == b"42\n"
    os.kill(bench.cluster.pid_of("sums-runner-0", "runner"), signal.SIGKILL)
    bench.until("it is started again", lambda: bench.pod("sums-runner-0").restarts == 1)
    bench.until("it is ready again", lambda: bench.pod("sums-runner-0").ready)
    assert pool.run(Program("print(6 * 7)")).stdout == b"42\n"
    pool.close()
