"""The CEL rules about Muon (`recipe.muon`, `sft.muon`). Part of `rules.RULES`."""

from shoal_operator.api.rule import Rule

MUON_RULES: tuple[Rule, ...] = (
    Rule(
        model="TrainingRunSpec",
        expression="!has(self.trainer.settings.lora) || (!has(self.recipe.muon) && (!has(self.sft) || !has(self.sft.muon)))",
        message="must not be given with muon, which updates whole matrices: adapters are factors of one",
        field="trainer.settings.lora",
        good={"trainer": {"settings": {"lora": {"rank": 8}}}, "recipe": {"adamBeta1": 0.9}},
        bad={"trainer": {"settings": {"lora": {"rank": 8}}}, "recipe": {"muon": {"momentum": 0.95}}},
    ),
    Rule(
        model="TrainingRunSpec",
        expression="self.mode == 'Train' || !has(self.recipe.muon)",
        message="goes with mode Train only; with mode SFT give sft.muon",
        field="recipe.muon",
        good={"mode": "Train", "recipe": {"muon": {"momentum": 0.95}}},
        bad={"mode": "SFT", "sft": {"dataset": {"path": "/data"}}, "recipe": {"muon": {"momentum": 0.95}}},
    ),
    Rule(
        model="TrainingRunSpec",
        expression="has(self.recipe.muon) == has(oldSelf.recipe.muon)",
        message="cannot come or go once the run exists, whose training state is of one optimizer; start a new run instead",
        field="recipe.muon",
        good={"recipe": {"muon": {"momentum": 0.9}}},
        bad={"recipe": {"adamBeta1": 0.9}},
        old={"recipe": {"muon": {"momentum": 0.95}}},
    ),
)
