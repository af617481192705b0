"""The CEL rules about what a run is for (`spec.mode`) and where its tasks come from. Part of `rules.RULES`."""

from shoal.contracts.datasets import LONGEST_FILTERED_NAME
from shoal_operator.api.quantization_rules import QUANTIZATION_RULES
from shoal_operator.api.rule import Rule, immutable
from shoal_operator.api.several_rules import SEVERAL_RULES

ALL_SOURCES = "(!has(self.tasks.mixture) || self.tasks.mixture.all(s, {}))"
"""What holds of every source of a mixture."""
NOT_SAMPLED = "!has(s.offlineFilter) || has(s.offlineFilter.solveRate)"

MODE_RULES: tuple[Rule, ...] = (
    Rule(
        model="TrainingRunSpec",
        expression="(self.mode == 'Generate') != has(self.steps)",
        message="must be given, but not with mode Generate, which samples each task once",
        field="steps",
        good={"mode": "Train", "steps": 100},
        bad={"mode": "Generate", "steps": 100},
    ),
    Rule(
        model="TrainingRunSpec",
        expression="self.mode == 'Generate' || !has(self.generate)",
        message="goes with mode Generate only",
        field="generate",
        good={"mode": "Generate", "generate": {"dataset": "traces"}},
        bad={"mode": "Train", "generate": {"dataset": "traces"}},
    ),
    Rule(
        model="TrainingRunSpec",
        expression="self.mode == 'Train' || !has(self.rollouts)",
        message="goes with mode Train only: other modes have no rollouts, or take them whole",
        field="rollouts",
        good={"mode": "Train", "rollouts": {"handInEverySeconds": 60}},
        bad={"mode": "Generate", "rollouts": {"handInEverySeconds": 60}},
    ),
    *SEVERAL_RULES,
    *QUANTIZATION_RULES,
    Rule(
        model="TrainingRunSpec",
        expression="self.mode == 'Train' || !has(self.rollBack)",
        message="goes with mode Train only",
        field="rollBack",
        good={"mode": "Train", "rollBack": {"toVersion": 1, "atStep": 3}},
        bad={"mode": "SFT", "rollBack": {"toVersion": 1, "atStep": 3}},
    ),
    Rule(
        model="TrainingRunSpec",
        expression=f"self.mode == 'Train' || (!has(self.tasks.offlineFilter) && {ALL_SOURCES.format('!has(s.offlineFilter)')})",
        message="goes with mode Train only",
        field="tasks.offlineFilter",
        good={"mode": "Train", "tasks": {"offlineFilter": {"samples": 8}}},
        bad={"mode": "Generate", "tasks": {"offlineFilter": {"samples": 8}}},
    ),
    Rule(
        model="TrainingRunSpec",
        expression="self.inferencePools.size() > 0 || ((!has(self.tasks.offlineFilter) || has(self.tasks.offlineFilter.solveRate)) && "
        f"{ALL_SOURCES.format(NOT_SAMPLED)})",
        message="needs a pool of the run's own in inferencePools, which samples the tasks before others can join",
        field="tasks.offlineFilter",
        good={"tasks": {"offlineFilter": {"samples": 8}}, "inferencePools": [{"name": "pool"}]},
        bad={"tasks": {"offlineFilter": {"samples": 8}}, "inferencePools": []},
    ),
    Rule(
        model="TrainingRun",
        expression=f"self.metadata.name.size() <= {LONGEST_FILTERED_NAME} || "
        "((!has(self.spec.tasks.offlineFilter) || has(self.spec.tasks.offlineFilter.solveRate)) && "
        f"{ALL_SOURCES.format(NOT_SAMPLED).replace('self.', 'self.spec.')})",
        message=f"must have at most {LONGEST_FILTERED_NAME} characters with tasks.offlineFilter: the run that samples is called <name>-filter",
        field="metadata.name",
        good={"metadata": {"name": "a" * LONGEST_FILTERED_NAME}, "spec": {"tasks": {"offlineFilter": {"samples": 8}}}},
        bad={
            "metadata": {"name": "a" * (LONGEST_FILTERED_NAME + 1)},
            "spec": {"tasks": {"offlineFilter": {"samples": 8}}},
        },
    ),
    Rule(
        model="TrainingRunSpec",
        expression="self.mode != 'Generate' || self.trainer.replicas == 1",
        message="must be 1 with mode Generate: one pod collects what was sampled",
        field="trainer.replicas",
        good={"mode": "Generate", "trainer": {"replicas": 1}},
        bad={"mode": "Generate", "trainer": {"replicas": 2}},
    ),
    Rule(
        model="GenerateSettings",
        expression="!has(self.maxCompletionTokens) || self.minCompletionTokens <= self.maxCompletionTokens",
        message="must be at least minCompletionTokens",
        field="maxCompletionTokens",
        good={"minCompletionTokens": 10, "maxCompletionTokens": 20},
        bad={"minCompletionTokens": 10, "maxCompletionTokens": 5},
    ),
    *(
        Rule(
            model=model,
            expression="!has(self.offlineFilter) || !has(self.offlineFilter.solveRate) || has(self.dataset)",
            message="needs dataset, whose column it is",
            field="offlineFilter.solveRate",
            good={**one, "offlineFilter": {"solveRate": "solve_rate"}, "dataset": {"path": "/data/tasks"}},
            bad={**one, "offlineFilter": {"solveRate": "solve_rate"}},
        )
        for model, one in (("TaskSource", {}), ("MixtureSource", {"name": "math", "environment": "math"}))
    ),
    Rule(
        model="OfflineFilter",
        expression="!has(self.solveRate) || !has(self.model)",
        message="must not be given with solveRate, with which nothing is sampled",
        field="model",
        good={"solveRate": "solve_rate"},
        bad={"solveRate": "solve_rate", "model": {"path": "/data/model"}},
    ),
    Rule(
        model="OfflineFilter",
        expression="self.minCorrect <= self.maxCorrect",
        message="must be at least minCorrect",
        field="maxCorrect",
        good={"minCorrect": 0.125, "maxCorrect": 0.5},
        bad={"minCorrect": 0.5, "maxCorrect": 0.125},
    ),
    Rule(
        model="DatasetSource",
        expression="[has(self.huggingFace), has(self.path), has(self.object)].exists_one(given, given)",
        message="must have exactly one of huggingFace, path, object",
        field="",
        good={"path": "/data/tasks"},
        bad={"path": "/data/tasks", "object": "tasks/"},
    ),
    Rule(
        model="DatasetSource",
        expression="has(self.huggingFace) == has(self.revision)",
        message="must be given with huggingFace, and only with it: an unpinned data set is another run tomorrow",
        field="revision",
        good={"huggingFace": "PrimeIntellect/INTELLECT-2-RL-Dataset", "revision": "main"},
        bad={"huggingFace": "PrimeIntellect/INTELLECT-2-RL-Dataset"},
    ),
    Rule(
        model="DatasetSource",
        expression="!has(self.layout) || !has(self.columns)",
        message="must not be given with layout: a known layout says which columns there are",
        field="columns",
        good={"path": "/data/tasks", "columns": {"prompt": "question"}},
        bad={"path": "/data/tasks", "columns": {"prompt": "question"}, "layout": "deepscaler"},
    ),
    Rule(
        model="DatasetSource",
        expression="!has(self.subset) || !has(self.object)",
        message="must not be given with object, which names its files",
        field="subset",
        good={"path": "/data/tasks", "subset": "main"},
        bad={"object": "tasks/", "subset": "main"},
    ),
    Rule(
        model="DatasetColumns",
        expression="has(self.prompt) != has(self.template)",
        message="must have exactly one of prompt and template",
        field="",
        good={"template": "{question} {options}"},
        bad={"prompt": "question", "template": "{question}"},
    ),
    Rule(
        model="DatasetColumns",
        expression="!has(self.extract) || has(self.answer)",
        message="needs answer, the column to look in",
        field="extract",
        good={"prompt": "question", "answer": "answer", "extract": {"after": "####"}},
        bad={"prompt": "question", "extract": {"after": "####"}},
    ),
    Rule(
        model="AnswerExtraction",
        expression="[has(self.after), has(self.boxed), has(self.pattern)].exists_one(given, given)",
        message="must have exactly one of after, boxed, pattern",
        field="",
        good={"after": "####"},
        bad={"after": "####", "boxed": True},
    ),
    Rule(
        model="RowFilter",
        expression="self.oneOf.size() > 0 || self.noneOf.size() > 0 || has(self.atLeast) || has(self.atMost) || has(self.matches)",
        message="must have at least one of oneOf, noneOf, atLeast, atMost, matches",
        field="",
        good={"column": "level", "oneOf": ["Level 5"], "noneOf": []},
        bad={"column": "level", "oneOf": [], "noneOf": []},
    ),
    immutable("mode", "Train", "Generate"),
    Rule(
        model="TrainingRunSpec",
        expression="has(self.generate) == has(oldSelf.generate) && "
        "(!has(self.generate) || self.generate == oldSelf.generate)",
        message="cannot change once the run exists; start a new run instead",
        field="generate",
        good={"mode": "Generate", "generate": {"dataset": "traces"}},
        bad={"mode": "Generate", "generate": {"dataset": "others"}},
        old={"mode": "Generate", "generate": {"dataset": "traces"}},
    ),
)
