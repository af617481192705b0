"""The CEL rules about supervised fine-tuning (`spec.sft`). Part of `rules.RULES`."""

from shoal_operator.api.rule import Rule

SFT_RULES: tuple[Rule, ...] = (
    Rule(
        model="TrainingRunSpec",
        expression="(self.mode == 'SFT') == has(self.sft)",
        message="must be given with mode SFT, and only with it",
        field="sft",
        good={"mode": "SFT", "sft": {"dataset": {"path": "/data"}}},
        bad={"mode": "Train", "sft": {"dataset": {"path": "/data"}}},
    ),
    Rule(
        model="TrainingRunSpec",
        expression="self.mode != 'SFT' || (!has(self.relayServer) && !has(self.relayServerRef) && !has(self.validator) && "
        "!has(self.validatorRef) && self.inferencePoolRefs.size() == 0)",
        message="mode SFT has no relays, validators or pools: nothing is sampled",
        field="",
        good={"mode": "SFT", "sft": {"dataset": {"path": "/data"}}, "inferencePoolRefs": []},
        bad={
            "mode": "SFT",
            "sft": {"dataset": {"path": "/data"}},
            "inferencePoolRefs": [],
            "relayServer": {"replicas": 2},
        },
    ),
    Rule(
        model="TrainingRunSpec",
        expression="has(self.sft) == has(oldSelf.sft) && (!has(self.sft) || self.sft == oldSelf.sft)",
        message="cannot change once the run exists; start a new run instead",
        field="sft",
        good={"mode": "SFT", "sft": {"dataset": {"path": "/data"}, "epochs": 2}},
        bad={"mode": "SFT", "sft": {"dataset": {"path": "/data"}, "epochs": 3}},
        old={"mode": "SFT", "sft": {"dataset": {"path": "/data"}, "epochs": 2}},
    ),
    Rule(
        model="SftSettings",
        expression="!has(self.packLength) || self.packLength >= self.maxSequenceLength",
        message="must be at least maxSequenceLength: a row is never cut",
        field="packLength",
        good={"packLength": 4096, "maxSequenceLength": 1024},
        bad={"packLength": 512, "maxSequenceLength": 1024},
    ),
    Rule(
        model="SftDataset",
        expression="[has(self.run), has(self.object), has(self.path)].exists_one(given, given)",
        message="must have exactly one of run, object, path",
        field="",
        good={"run": "traces"},
        bad={"run": "traces", "path": "/data/traces"},
    ),
    Rule(
        model="SftDataset",
        expression="!has(self.name) || has(self.run)",
        message="goes with run only",
        field="name",
        good={"run": "traces", "name": "long"},
        bad={"path": "/data/traces", "name": "long"},
    ),
)
