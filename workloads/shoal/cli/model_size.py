"""How large a base model is: by `--parameters`, a `config.json` that can be read here, or a name. Called by `shoal init` and `plan`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.errors import InputWrong
from shoal.planner.model_shape import (
    LARGEST_PARAMETERS,
    ModelShape,
    UnknownShape,
    parameters_in,
    parameters_said,
    shape_of_config,
    shape_of_parameters,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shoal.contracts.model_source import ModelSource

GENERATED_PARAMETERS = 700_000
"""Of the tiny model that is made on the spot."""


def shape_by(
    given: int | None, read: Callable[[], Mapping[str, object]], name: str, field: str = "--model"
) -> tuple[ModelShape, str]:
    """The shape by `--parameters`, by the configuration that `read` gives, or by the name."""
    if given is not None:
        return shape_of_parameters(given), ""
    try:
        return shape_of_config(read()), ""
    except UnknownShape as error:
        named = parameters_in(name)
        if named is None:
            raise InputWrong(f"{field} {name}: {error}; give its size, such as --parameters 7B") from None
        return shape_of_parameters(named), f"the size is taken from the name: {error}"


def config_of(folder: Path, field: str = "--model") -> dict[str, object]:
    """`config.json` of a checkpoint's folder. Raises InputWrong."""
    path = folder / "config.json"
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise InputWrong(f"{field} {folder}: config.json cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InputWrong(f"{path}: is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise InputWrong(f"{path}: is not a JSON object")
    return found


def parameters_given(given: str | None) -> int | None:
    """The number that `--parameters` says. Raises InputWrong."""
    if given is None:
        return None
    found = int(given) if given.isdecimal() else parameters_said(given)
    if not found or found > LARGEST_PARAMETERS:
        raise InputWrong(f"--parameters {given}: not a size; allowed: a number such as 7000000000, or 135M, 1.7B, 72B")
    return found


def shape_of_source(source: ModelSource, parameters: str | None) -> tuple[ModelShape, str]:
    """The shape of a manifest's base model, and what was guessed of it. Raises InputWrong where nobody says its size."""
    given = parameters_given(parameters)
    if source.generated is not None:
        return shape_of_parameters(given or GENERATED_PARAMETERS), ""
    if source.path is not None:
        folder = Path(source.path)
        return shape_by(given, lambda: config_of(folder, "spec.model.path"), source.path, "spec.model.path")
    if source.hugging_face is None:
        if given is None:
            raise InputWrong(
                "spec.model.run: the size of another run's model is not known here; give --parameters, such as 1.7B"
            )
        return shape_of_parameters(given), ""
    name, revision = source.hugging_face, source.revision or "main"

    def read() -> dict[str, object]:
        from shoal.environments.hub import HubRefused, model_config

        try:
            return model_config(name, revision)
        except HubRefused as error:
            raise UnknownShape(str(error)[:160]) from None

    return shape_by(given, read, name, "spec.model.huggingFace")
