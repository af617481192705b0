"""Manifests: what is accepted, and the one clear line for every mistake."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.contracts.algorithm import Algorithm, Prime
from shoal.contracts.recipe import Recipe
from shoal_operator.api import KINDS, TrainingRun
from shoal_operator.api.manifest import MAX_BYTES, ManifestError, broken_rules, load_manifest
from shoal_operator.api.rules import RULES, Rule, holds, variables

EXAMPLES = sorted(
    path
    for path in (Path(__file__).parents[2] / "examples").glob("*/*.yaml")
    if path.parent.name not in ("serving", "tenancy")
)

GOOD: dict[str, Any] = {
    "apiVersion": "shoal.dev/v1alpha1",
    "kind": "TrainingRun",
    "metadata": {"name": "sums"},
    "spec": {
        "model": {"generated": {}},
        "tasks": {"environment": "arithmetic"},
        "steps": 4,
        "recipe": {"learningRate": 1e-4, "promptsPerStep": 8},
    },
}


def mistakes(manifest: Any) -> list[str]:
    text = manifest if isinstance(manifest, str) else yaml.safe_dump(manifest)
    with pytest.raises(ManifestError) as caught:
        load_manifest(text, "run.yaml")
    return str(caught.value).splitlines()


def changed(path: str, value: Any) -> dict[str, Any]:
    """The good manifest with one value set, or taken out when it is `...`."""
    manifest = copy.deepcopy(GOOD)
    *parents, last = path.split(".")
    at = manifest
    for part in parents:
        at = at.setdefault(part, {})
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return manifest


def with_mixture(recipe: dict[str, Any]) -> dict[str, Any]:
    """The good manifest's spec with this recipe, and a mixture of two sources in place of its tasks."""
    sources = [{"name": name, "environment": name, "weight": 1} for name in ("math", "code")]
    return {**GOOD["spec"], "tasks": {"mixture": sources}, "recipe": recipe}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.name)
def test_every_shipped_example_is_accepted(path: Path) -> None:
    assert load_manifest(path.read_text(), str(path))


def test_absent_fields_have_the_papers_defaults() -> None:
    [run] = load_manifest(yaml.safe_dump(changed("spec.recipe", {})))
    assert isinstance(run, TrainingRun)
    assert run.spec.async_level == 2
    assert (run.spec.recipe.prompts_per_step, run.spec.recipe.group_size, run.spec.recipe.loss.upper_bound) == (
        256,
        16,
        4.0,
    )
    assert run.spec.length_reward is None


def test_the_group_size_that_is_not_given_is_the_algorithms() -> None:
    [run] = load_manifest(yaml.safe_dump(changed("spec.recipe", {"algorithm": {"prime": {}}})))
    assert isinstance(run, TrainingRun)
    recipe = run.spec.recipe
    assert (recipe.prompts_per_step, recipe.group_size) == (256, 4)
    assert recipe.process_rewards is not None
    assert (recipe.process_rewards.beta, recipe.process_rewards.learning_rate) == (0.05, 1e-6)
    assert Recipe.model_validate(recipe.model_dump(by_alias=True)) == recipe
    assert Recipe(algorithm=Algorithm(prime=Prime()), group_size=8).group_size == 8
    [run] = load_manifest(yaml.safe_dump(changed("spec.recipe", {"algorithm": {"vineppo": {}}})))
    assert isinstance(run, TrainingRun)
    assert (run.spec.recipe.group_size, run.spec.recipe.rows_each) == (8, 13)


@pytest.mark.parametrize("number", ["1e-4", "1E-4", "0.0001", "1.0e-4"])
def test_a_number_may_be_written_as_kubernetes_reads_it(number: str) -> None:
    text = yaml.safe_dump(GOOD).replace("learningRate: 0.0001", f"learningRate: {number}")
    [run] = load_manifest(text)
    assert isinstance(run, TrainingRun)
    assert run.spec.recipe.learning_rate == 1e-4


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        ("spec.recipe.learningrate", 1,
         "spec.recipe.learningrate: unknown key; allowed keys: algorithm, promptsPerStep, groupSize, {...}; did you mean learningRate?"),
        ("spec.recipe.group_size", 8, "spec.recipe.group_size: unknown key; allowed keys: {...}; did you mean groupSize?"),
        ("spec.recipe.algorithm.gspoo", {},
         "spec.recipe.algorithm.gspoo: unknown key; allowed keys: twoSidedGrpo, oneSidedGrpo, {...}vineppo; did you mean gspo?"),
        ("spec.qqq", 8, "spec.qqq: unknown key; allowed keys: mode, model, tasks, steps, {...}suspend"),
        ("spec.steps", ..., "spec.steps: missing; must be given, but not with mode Generate, which samples each task once"),
        ("spec.steps", "4", 'spec.steps: given "4"; allowed: integer, 1 to 999999'),
        ("spec.steps", 0, "spec.steps: given 0; allowed: integer, 1 to 999999"),
        ("spec.steps", True, "spec.steps: given true; allowed: integer, 1 to 999999"),
        ("spec.asyncLevel", 5, "spec.asyncLevel: given 5; allowed: integer, 0 to 4"),
        ("spec.recipe.learningRate", 0, "spec.recipe.learningRate: given 0; allowed: number, more than 0, at most 1"),
        ("spec.recipe.onlineFilter", "taskreward",
         'spec.recipe.onlineFilter: given "taskreward"; allowed: one of TaskReward, TotalReward, None; did you mean TaskReward?'),
        ("spec.suspend", "yes please", 'spec.suspend: given "yes please"; allowed: true or false'),
        ("spec.tasks", "arithmetic", 'spec.tasks: given "arithmetic"; allowed: a mapping, with keys environment, count'),
        ("spec.lengthReward.targets", [],
         "spec.lengthReward.targets: given a list of 0; allowed: a list, at least 1 items, at most 64 items"),
        ("spec.lengthReward.targets", [0], "spec.lengthReward.targets[0]: given 0; allowed: integer, 1 to 1048576"),
        ("spec.trainer.resources.requests", {"memory": "4GB"},
         'spec.trainer.resources.requests.memory: given "4GB"; allowed: a quantity such as 500m, 2 or 4Gi'),
        ("spec.trainer.resources.requests", {"cpu": -1},
         "spec.trainer.resources.requests.cpu: given -1; allowed: a quantity such as 500m, 2 or 4Gi"),
        ("spec.storage.folderSize", "lots", 'spec.storage.folderSize: given "lots"; allowed: text, at most 32 characters, matching {...}'),
        ("spec.storage.folderSize", "1Ei", 'spec.storage.folderSize: given "1Ei"; allowed: text, at most 32 characters, matching {...}'),
        ("spec.storage.folderSize", "0.0Gi", 'spec.storage.folderSize: given "0.0Gi"; allowed: text, at most 32 characters, matching {...}'),
        ("spec.storeVolume.size", "0Gi", 'spec.storeVolume.size: given "0Gi"; allowed: a size such as 20Gi, more than nothing'),
        ("spec.trainer.scratchSize", -5, "spec.trainer.scratchSize: given -5; allowed: a size such as 20Gi, more than nothing"),
        ("spec.storage.s3", {"endpoint": "http://[fd00::1:9000", "bucket": "rollouts", "credentialsSecret": "store"},
         'spec.storage.s3.endpoint: given "http://[fd00::1:9000"; must be a URL that starts with http:// or https://'),
        ("spec.inferencePools", [{"name": "much-too-long-a-name"}],
         'spec.inferencePools[0].name: given "much-too-long-a-name"; allowed: text, at most 11 characters, matching {...}'),
        ("spec.trainer.podTemplate.tolerations", [{"key": "gpu", "effect": "noexecute"}],
         'spec.trainer.podTemplate.tolerations[0].effect: given "noexecute"; allowed: one of NoSchedule, PreferNoSchedule, NoExecute; '
         "did you mean NoExecute?"),
        ("spec.trainer.gpuCount", 8, "spec.trainer.gpuCount: unknown key; allowed keys: replicas, gpu, {...}"),
        ("spec.inferencePool", {"replicas": 2},
         "spec.inferencePool: unknown key; allowed keys: mode, model, {...}; did you mean inferencePools?"),
        ("spec.relayServer.exposure", {"type": "Loadbalancer"},
         'spec.relayServer.exposure.type: given "Loadbalancer"; allowed: one of ClusterIP, NodePort, LoadBalancer, Ingress, Gateway; '
         "did you mean LoadBalancer?"),
        ("metadata.name", "Sums", 'metadata.name: given "Sums"; allowed: text, matching {...}'),
        ("metadata.nmae", "sums", "metadata.nmae: unknown key; allowed keys: name, {...}; did you mean name?"),
        ("apiVersion", "shoal.dev/v1", 'apiVersion: given "shoal.dev/v1"; allowed: shoal.dev/v1alpha1; did you mean shoal.dev/v1alpha1?'),
        ("kind", "Trainingrun", 'kind: given "Trainingrun"; allowed: TrainingRun, InferencePool, RelayServer, Validator; did you mean TrainingRun?'),
        ("kind", ..., "kind: missing; allowed: TrainingRun, InferencePool, RelayServer, Validator"),
    ],
)  # fmt: skip
def test_a_mistake_gets_one_line_with_path_given_allowed_and_nearest(path: str, value: Any, line: str) -> None:
    [found] = mistakes(changed(path, value))
    start, _, end = f"run.yaml: {line}".partition("{...}")
    assert found.startswith(start)
    assert found.endswith(end)


def test_every_mistake_of_every_document_has_its_line() -> None:
    first, second = changed("spec.steps", 0), changed("spec.recipe.groupsize", 4)
    second["spec"]["asyncLevel"] = 9
    found = mistakes(yaml.safe_dump_all([first, second]))
    assert [line.split(": ")[0:2] for line in found] == [
        ["run.yaml", "spec.steps"],
        ["run.yaml (document 2)", "spec.recipe.groupsize"],
        ["run.yaml (document 2)", "spec.asyncLevel"],
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "has no document; write one with `kind: TrainingRun`"),
        ("a: [1", "line 1, column 6: not valid YAML"),
        ("a: 1\na: 2\n", "line 2, column 1: not valid YAML: the key 'a' is given twice"),
        ("- 1\n", "given a list of 1; allowed: a mapping with apiVersion, kind, metadata, spec"),
        ("x" * (MAX_BYTES + 1), "is larger than 3145728 bytes"),
        ("a: !!python/object/apply:os.system ['true']", "not valid YAML: could not determine a constructor"),
        ("\x00", "not valid YAML: unacceptable character"),
    ],
)
def test_a_document_that_is_not_a_manifest_is_refused_in_one_line(text: str, problem: str) -> None:
    [line] = mistakes(text)
    assert problem in line


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.model}-{rule.field or 'self'}")
def test_every_rule_separates_its_good_example_from_its_bad_one(rule: Rule) -> None:
    assert holds(rule, variables(rule.good, rule.old))
    assert not holds(rule, variables(rule.bad, rule.old))


def test_every_rule_belongs_to_a_model_that_a_manifest_has() -> None:
    from shoal_operator.api.schema import structural_schema

    used: set[str] = set()

    def walk(schema: Any) -> None:
        if isinstance(schema, dict):
            used.update(each["rule"] for each in schema.get("x-kubernetes-validations", []))
            for value in schema.values():
                walk(value)

    for kind in KINDS.values():
        walk(structural_schema(kind))
    assert used == {rule.expression for rule in RULES}


BROKEN = [
    ("spec.recipe.algorithm", {"twoSidedGrpo": {"clipDelta": 1.1}},
     "spec.recipe.algorithm.twoSidedGrpo.clipDelta: given 1.1; must be greater than 1 + clipEpsilon (paper section 3.4)"),
    ("spec.recipe.algorithm", {}, "spec.recipe.algorithm: must have exactly one of twoSidedGrpo, oneSidedGrpo, drGrpo, dapo, rloo, decoupledPpo, "
     "gspo, cispo, dppo, custom, prime, vineppo, such as `twoSidedGrpo: {}`, which has the defaults"),
    ("spec.recipe.algorithm", {"dapo": {}, "rloo": {}},
     "spec.recipe.algorithm: must have exactly one of twoSidedGrpo, oneSidedGrpo, drGrpo, dapo, rloo, decoupledPpo, gspo, "
     "cispo, dppo, custom, prime, vineppo, such as `twoSidedGrpo: {}`, which has the defaults"),
    ("spec.recipe.algorithm", {"prime": {"loss": {}}},
     "spec.recipe.algorithm.prime.loss: must have exactly one of twoSidedGrpo, oneSidedGrpo, drGrpo, decoupledPpo, such as `twoSidedGrpo: {}`, "
     "which has the defaults"),
    ("spec.recipe.algorithm", {"dapo": {"clipEpsilon": 0.3}},
     "spec.recipe.algorithm.dapo.clipEpsilonHigh: given 0.28; must be at least clipEpsilon (clip-higher, arXiv:2503.14476)"),
    ("spec.recipe.sources", [{"name": "code", "lossWeight": 2.0}],
     "spec.recipe.sources: given a list of 1; must name sources of tasks.mixture: give each the name of one, or add it there"),
    ("spec", with_mixture({"sources": [{"name": "code", "algorithm": {}}]}),
     "spec.recipe.sources[0].algorithm: must have exactly one of twoSidedGrpo, oneSidedGrpo, drGrpo, dapo, rloo, decoupledPpo, gspo, cispo, dppo, "
     "such as `twoSidedGrpo: {}`, which has the defaults"),
    ("spec", with_mixture({"mismatchCorrection": {"mask": {}}, "sources": [{"name": "code", "algorithm": {"rloo": {"importanceCap": 2.0}}}]}),
     "spec.recipe.sources: given a list of 1; must not have an algorithm decoupledPpo or dppo, or importanceCap, beside mismatchCorrection: "
     "tokens would be weighed twice"),
    ("spec.recipe.mismatchCorrection", {"truncate": {}, "icepop": {}},
     "spec.recipe.mismatchCorrection: must have at most one of truncate, mask, icepop: each of them weighs a token"),
    ("spec.recipe.mismatchCorrection", {},
     "spec.recipe.mismatchCorrection: must have truncate, mask, icepop or sequence, such as `icepop: {}`, which has the defaults"),
    ("spec.recipe", {"algorithm": {"dapo": {"importanceCap": 2.0}}, "mismatchCorrection": {"mask": {}}},
     "spec.recipe.mismatchCorrection: must not be given with algorithm decoupledPpo or dppo, or with importanceCap: "
     "tokens would be weighed twice"),
    ("spec.recipe.schedules", {"klCoefficient": [{"step": 5, "value": 0.1}, {"step": 5, "value": 0.0}]},
     "spec.recipe.schedules.klCoefficient: given a list of 2; must not name a step twice"),
    ("spec.recipe.optimizerSteps", 3,
     "spec.recipe.optimizerSteps: given 3; promptsPerStep x groupSize must be divisible by optimizerSteps"),
    ("spec.model", {}, "spec.model: must have exactly one of huggingFace, path, generated, run"),
    ("spec.model", {"huggingFace": "a/b"},
     "spec.model.revision: missing; must be given with huggingFace, and only with it: an unpinned model is another run tomorrow"),
    ("spec.sampling.maxCompletionTokens", 32768,
     "spec.sampling.maxCompletionTokens: given 32768; must be less than recipe.maxSequenceLength, which counts the prompt too"),
    ("spec.lengthReward.targets", [99999],
     "spec.lengthReward.targets: given a list of 1; must all be at most sampling.maxCompletionTokens"),
    ("spec.inferencePools", [{"name": "fast"}, {"name": "fast"}],
     "spec.inferencePools: given a list of 2; must have names that differ"),
    ("spec.inferencePools", [{"name": "relay"}],
     'spec.inferencePools[0].name: given "relay"; must not be the name of another part of the run'),
    ("spec.inferencePools", [{"name": "runner"}],
     'spec.inferencePools[0].name: given "runner"; must not be the name of another part of the run'),
    ("spec.inferencePools", [{"engine": {"tensorParallelSize": 2}}],
     "spec.inferencePools[0].engine.tensorParallelSize: given 2; must be, times engine.pipelineParallelSize, at most gpu.count: "
     "an engine spreads over the GPUs of its own pod, or over engine.hosts pods"),
    ("spec.inferencePools", [{"engine": {"tensorParallelSize": 3, "hosts": 2}}],
     "spec.inferencePools[0].engine.tensorParallelSize: given 3; must be, times engine.pipelineParallelSize, engine.hosts x gpu.count, "
     "or engine.hosts without GPUs: "
     "each pod of an engine has an equal share of it"),
    ("spec.inferencePools", [{"engine": {"tensorParallelSize": 2, "hosts": 2}, "podTemplate": {"hostNetwork": True}}],
     "spec.inferencePools[0].podTemplate.hostNetwork: given true; must not be true with engine.hosts: "
     "vLLM's ranks believe whoever reaches them, and NetworkPolicies do not hold there"),
    ("spec.trainer.resources.limits", {"nvidia.com/gpu": 1},
     "spec.trainer.resources: must not name nvidia.com/gpu: gpu.count asks for GPUs"),
    ("spec.rollBack", {"toVersion": 3, "atStep": 2},
     "spec.rollBack.toVersion: given 3; must be at most atStep: later versions do not exist yet when that step begins"),
    ("spec.relayServer.exposure", {"type": "Ingress"},
     "spec.relayServer.exposure.domain: missing; must be given with the types Ingress and Gateway, and only with them"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value", "line"), BROKEN)
def test_a_broken_rule_is_reported_at_its_field(path: str, value: Any, line: str) -> None:
    assert mistakes(changed(path, value)) == [f"run.yaml: {line}"]


def test_the_sources_of_a_run_cannot_change_but_its_length_can() -> None:
    [old] = load_manifest(yaml.safe_dump(GOOD))
    [longer] = load_manifest(yaml.safe_dump(changed("spec.steps", 9)))
    [other] = load_manifest(yaml.safe_dump(changed("spec.tasks.environment", "chess")))
    assert list(broken_rules(longer, old)) == []
    assert list(broken_rules(other, old)) == [
        ("spec.tasks", "cannot change once the run exists; start a new run instead")
    ]


@pytest.mark.parametrize(
    ("field", "before", "after"),
    [
        ("recipe.routerReplay", {"recipe": {}}, {"recipe": {"routerReplay": "Replay"}}),
        ("recipe.routerReplay", {"recipe": {"routerReplay": "Report"}}, {"recipe": {}}),
        ("asyncLevel", {"tasks": {"environment": "arithmetic", "curriculum": {}}}, {"asyncLevel": 1}),
    ],
)
def test_what_files_under_way_were_made_by_cannot_change(
    field: str, before: dict[str, Any], after: dict[str, Any]
) -> None:
    """Routes are in a run's files or not, as it was prepared; with a curriculum asyncLevel says which batches decide the pools of a step."""
    spec = GOOD["spec"] | before
    [old] = load_manifest(yaml.safe_dump(GOOD | {"spec": spec}))
    [new] = load_manifest(yaml.safe_dump(GOOD | {"spec": spec | after}))
    assert [path for path, _ in broken_rules(new, old)] == [f"spec.{field}"]


# Several mistakes of one document.


def with_mistakes(**paths: Any) -> list[str]:
    """Paths of the lines for the good manifest with several values set; `__` stands for the dot."""
    manifest = copy.deepcopy(GOOD)
    for path, value in paths.items():
        *parents, last = path.split("__")
        at = manifest
        for part in parents:
            at = at.setdefault(part, {})
        at[last] = value
    return [line.removeprefix("run.yaml: ").split(": ")[0] for line in mistakes(manifest)]


def test_broken_rules_are_reported_beside_mistakes_of_the_schema() -> None:
    manifest = changed("spec.recipe.learningRate", "fast")
    manifest["spec"]["recipe"] |= {"optimizerSteps": 3, "algorithm": {"twoSidedGrpo": {"clipDelta": 1.1}}}
    manifest["spec"]["inferencePools"] = [{"name": "relay", "replicas": -1}, {"name": "relay"}]
    manifest["spec"]["asynclevel"] = 2
    manifest["spec"]["model"] = {"path": "/models/base", "huggingFace": "a/b"}
    told = mistakes(manifest)
    assert {line.removeprefix("run.yaml: ").partition(":")[0] for line in told[:3]} == {
        "spec.recipe.learningRate", "spec.inferencePools[0].replicas", "spec.asynclevel",
    }  # fmt: skip
    relay = 'given "relay"; must not be the name of another part of the run'
    assert sorted(line.removeprefix("run.yaml: ") for line in told[3:]) == [
        "spec.inferencePools: given a list of 2; must have names that differ",
        f"spec.inferencePools[0].name: {relay}",
        f"spec.inferencePools[1].name: {relay}",
        "spec.model.revision: missing; must be given with huggingFace, and only with it: an unpinned model is another run tomorrow",
        "spec.model: must have exactly one of huggingFace, path, generated, run",
        "spec.recipe.algorithm.twoSidedGrpo.clipDelta: given 1.1; must be greater than 1 + clipEpsilon (paper section 3.4)",
        "spec.recipe.optimizerSteps: given 3; promptsPerStep x groupSize must be divisible by optimizerSteps",
    ]


@pytest.mark.parametrize(
    ("paths", "told"),
    [
        ({"spec__recipe__promptsPerStep": "8", "spec__recipe__optimizerSteps": 3}, ["spec.recipe.promptsPerStep"]),
        ({"spec__recipe__groupsize": 3, "spec__recipe__optimizerSteps": 3}, ["spec.recipe.groupsize"]),
        ({"spec__groupSize": 3, "spec__recipe__optimizerSteps": 3}, ["spec.groupSize"]),
        ({"spec__recipe": "fast", "spec__sampling": {"maxCompletionTokens": 32768}}, ["spec.recipe"]),
        ({"spec__model": None, "spec__asyncLevel": 9}, ["spec.model", "spec.asyncLevel"]),
        (
            {"spec__tasks": {}, "spec__recipe__algorithm": {"twoSidedGrpo": {"clipDelta": 1.1}}},
            ["spec.tasks", "spec.recipe.algorithm.twoSidedGrpo.clipDelta"],
        ),
        ({"metadata__name": "Sums", "spec__model": {}}, ["metadata.name", "spec.model"]),
        ({"spec__inferencePools": [[[]]], "spec__model": {}}, ["spec.inferencePools[0]", "spec.model"]),
    ],
)  # fmt: skip
def test_a_rule_that_reads_a_mistaken_field_waits_until_it_is_correct(paths: dict[str, Any], told: list[str]) -> None:
    assert with_mistakes(**paths) == told


@pytest.mark.parametrize(
    ("paths", "told"),
    [
        (
            {"apiVersion": "v1", "spec__asyncLevel": 9, "spec__model": {}},
            ["apiVersion", "spec.asyncLevel", "spec.model"],
        ),
        (
            {"kind": "Trainingrun", "spec__recipe__algorithm": {"twoSidedGrpo": {"clipDelta": 1.1}}},
            ["kind", "spec.recipe.algorithm.twoSidedGrpo.clipDelta"],
        ),
        ({"kind": "Pod", "spec__asyncLevel": 9}, ["kind"]),
    ],
)
def test_the_kind_that_is_meant_is_checked_when_apiversion_or_kind_are_wrong(
    paths: dict[str, Any], told: list[str]
) -> None:
    assert with_mistakes(**paths) == told


@pytest.mark.parametrize(("path", "value", "line"), BROKEN)
def test_a_broken_rule_is_reported_alike_beside_a_mistake_that_it_does_not_read(
    path: str, value: Any, line: str
) -> None:
    manifest = changed(path, value)
    manifest["spec"]["zzz"] = 1
    unknown, *others = mistakes(manifest)
    assert unknown.startswith("run.yaml: spec.zzz: unknown key")
    assert others == [f"run.yaml: {line}"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_mistake_in_a_shipped_example_is_the_only_one(path: Path) -> None:
    documents = [document for document in yaml.safe_load_all(path.read_text()) if document is not None]
    documents[0].setdefault("spec", {})["zzz"] = 1
    [line] = mistakes(yaml.safe_dump_all(documents))
    assert "spec.zzz: unknown key" in line


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("kind", ["TrainingRun"], ["kind"]),
        ("kind", {"a": 1}, ["kind"]),
        ("spec", None, ["spec"]),
        ("spec", [], ["spec"]),
        ("spec.recipe.learningRate", 10**400, ["spec.recipe.learningRate"]),
        ("spec.steps", 2**70, ["spec.steps"]),
        ("spec.images.trainer", b"\x00", ["spec.images.trainer"]),
        ("spec.1", 1, ["spec.1"]),
        ("spec.inferencePools", [None, 3, {"name": 4}], ["spec.inferencePools[0]", "spec.inferencePools[1]", "spec.inferencePools[2].name"]),
    ],
)  # fmt: skip
def test_any_value_is_refused_in_lines(path: str, value: Any, told: list[str]) -> None:
    assert with_mistakes(**{path.replace(".", "__"): value}) == told


def test_a_document_that_nests_without_end_is_refused_in_lines() -> None:
    text = yaml.safe_dump(changed("spec.asyncLevel", 9)) + "  deep: " + "[" * 60 + "]" * 60 + "\n"
    assert len(mistakes(text)) == 2
