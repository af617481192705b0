"""The CEL rules about packages that a run brings (`spec.tasks.packages`). Part of `rules.RULES`.

That no package is named twice is prepare's to say: to compare each with each is more than an API server lets a rule cost.
"""

from typing import Any

from shoal_operator.api.rule import Rule


def _wheel(package: str, **where: str) -> dict[str, Any]:
    return {"package": package, "version": "1.0", "sha256": "ab" * 32, **where}


PACKAGE_RULES: tuple[Rule, ...] = (
    Rule(
        model="EnvironmentPackage",
        expression="(has(self.url) ? 1 : 0) + (has(self.path) ? 1 : 0) + (has(self.object) ? 1 : 0) <= 1",
        message="must have at most one of url, path, object; without one it comes from the package index",
        field="",
        good=_wheel("echoes", object="packages/echoes-1.0-py3-none-any.whl"),
        bad=_wheel("echoes", object="packages/echoes-1.0-py3-none-any.whl", path="/shoal/data/echoes.whl"),
    ),
)
