"""The CEL rules about how prompts are made (`spec.tasks.prompt`, and of a benchmark). Part of `rules.RULES`."""

from shoal_operator.api.rule import Rule

PROMPT_RULES: tuple[Rule, ...] = (
    Rule(
        model="PromptSettings",
        expression="!has(self.template) || self.template != 'Raw' || (!has(self.system) && !has(self.templateArguments))",
        message="Raw is text without messages: system and templateArguments go with Chat only",
        field="template",
        good={"template": "Raw", "assistantPrefix": "<think>"},
        bad={"template": "Raw", "system": "You are terse."},
    ),
)
