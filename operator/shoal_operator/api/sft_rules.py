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
        model="TrainingRunSpec",
        expression="self.mode == 'SFT' || !has(self.trainer.islands)",
        message="goes with mode SFT only: islands of other modes would each need a step counter and pools of their own",
        field="trainer",
        good={"mode": "SFT", "trainer": {"islands": {"count": 2}}, "sft": {"dataset": {"path": "/data"}}},
        bad={"mode": "Train", "trainer": {"islands": {"count": 2}}},
    ),
    Rule(
        model="TrainingRunSpec",
        expression="!has(self.trainer.islands) || self.trainer.replicas == 1",
        message="an island is one pod, of as many GPUs as it likes; raise gpu or islands.count instead of replicas",
        field="trainer",
        good={
            "mode": "SFT",
            "trainer": {"replicas": 1, "islands": {"count": 3}},
            "sft": {"dataset": {"path": "/data"}},
        },
        bad={"mode": "SFT", "trainer": {"replicas": 2, "islands": {"count": 3}}, "sft": {"dataset": {"path": "/data"}}},
    ),
    Rule(
        model="TrainingRunSpec",
        expression="has(self.trainer.islands) == has(oldSelf.trainer.islands) && (!has(self.trainer.islands) || "
        "self.trainer.islands.count == oldSelf.trainer.islands.count)",
        message="islands cannot come to a run or go from it; start a new run instead",
        field="trainer",
        good={
            "mode": "SFT",
            "trainer": {"islands": {"count": 2, "innerSteps": 50}},
            "sft": {"dataset": {"path": "/data"}},
        },
        bad={"mode": "SFT", "trainer": {"islands": {"count": 3}}, "sft": {"dataset": {"path": "/data"}}},
        old={"mode": "SFT", "trainer": {"islands": {"count": 2}}, "sft": {"dataset": {"path": "/data"}}},
    ),
    Rule(
        model="TrainingRunSpec",
        expression="!has(self.trainer.islands) || !has(self.queueName)",
        message="does not go with trainer.islands: a queue admits the trainer's Job alone, and the other islands would start without it",
        field="queueName",
        good={"mode": "SFT", "trainer": {"islands": {"count": 2}}, "sft": {"dataset": {"path": "/data"}}},
        bad={
            "mode": "SFT",
            "queueName": "research",
            "trainer": {"islands": {"count": 2}},
            "sft": {"dataset": {"path": "/data"}},
        },
    ),
    Rule(
        model="TrainingRunSpec",
        expression="!has(self.trainer.islands) || self.stability.action == 'Report'",
        message="must be Report with trainer.islands: one that pauses or goes back alone is carried on by the next exchange",
        field="stability.action",
        good={
            "mode": "SFT",
            "stability": {"action": "Report"},
            "trainer": {"islands": {"count": 2}},
            "sft": {"dataset": {"path": "/data"}},
        },
        bad={
            "mode": "SFT",
            "stability": {"action": "Pause"},
            "trainer": {"islands": {"count": 2}},
            "sft": {"dataset": {"path": "/data"}},
        },
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
