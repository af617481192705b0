"""The CEL rules about what a trainer keeps in its pods' host memory. Part of `rules.RULES`."""

from shoal_operator.api.rule import Rule

OFFLOAD_RULES: tuple[Rule, ...] = (
    Rule(
        model="TrainerSettings",
        expression="!has(self.offload) || !self.offload.activations || self.activationRecomputation != 'Off'",
        message="must not have activations with activationRecomputation Off: only what recomputation begins with can be kept in host memory",
        field="offload",
        good={"activationRecomputation": "On", "offload": {"activations": True}},
        bad={"activationRecomputation": "Off", "offload": {"activations": True}},
    ),
    Rule(
        model="TrainerSettings",
        expression="!has(self.offload) || !self.cpuOffload || !(self.offload.reference || self.offload.optimizer)",
        message="must not have reference or optimizer with cpuOffload, which keeps both in host memory already",
        field="offload",
        good={"cpuOffload": True, "offload": {"reference": False, "optimizer": False, "activations": True}},
        bad={"cpuOffload": True, "offload": {"reference": True, "optimizer": False}},
    ),
    Rule(
        model="TrainerTemplate",
        expression="!has(self.settings.offload) || self.gpu.count > 0 || "
        "!(self.settings.offload.reference || self.settings.offload.optimizer || self.settings.offload.activations)",
        message="must have nothing without GPUs, which it takes memory from: give the trainer gpu.count",
        field="settings.offload",
        good={
            "gpu": {"count": 8},
            "settings": {"offload": {"reference": False, "optimizer": True, "activations": False}},
        },
        bad={
            "gpu": {"count": 0},
            "settings": {"offload": {"reference": False, "optimizer": True, "activations": False}},
        },
    ),
)
