"""The CEL rules about pools of problems by their solve rate (`spec.tasks.curriculum`). Part of `rules.RULES`."""

from typing import Any

from shoal_operator.api.rule import Rule

_POOLS: dict[str, Any] = {"environment": "math", "curriculum": {"hardBelow": 0.125, "easyFrom": 0.875}}

CURRICULUM_RULES: tuple[Rule, ...] = (
    Rule(
        model="Curriculum",
        expression="self.hardBelow < self.easyFrom",
        message="must be below easyFrom: problems between the two are the middle pool",
        field="hardBelow",
        good={"hardBelow": 0.25, "easyFrom": 0.75},
        bad={"hardBelow": 0.75, "easyFrom": 0.25},
    ),
    Rule(
        model="TaskSource",
        expression="!has(self.curriculum) || !has(self.mixture)",
        message="does not go with mixture, whose sources take turns by their own weights",
        field="curriculum",
        good=_POOLS,
        bad={"mixture": [{"name": "math", "environment": "math"}], "curriculum": {}},
    ),
    Rule(
        model="TrainingRunSpec",
        expression="self.mode == 'Train' || !has(self.tasks.curriculum)",
        message="goes with mode Train only: other modes measure no solve rates, or take each task once",
        field="tasks.curriculum",
        good={"mode": "Train", "tasks": _POOLS},
        bad={"mode": "Generate", "tasks": _POOLS},
    ),
    Rule(
        model="TrainingRunSpec",
        expression="!has(self.tasks.curriculum) || self.asyncLevel == oldSelf.asyncLevel",
        message="cannot change once a run with tasks.curriculum exists: it says which batches decide the pools that files under way were drawn"
        " from; start a new run instead",
        field="asyncLevel",
        good={"tasks": _POOLS, "asyncLevel": 2},
        bad={"tasks": _POOLS, "asyncLevel": 1},
        old={"tasks": _POOLS, "asyncLevel": 2},
    ),
)
