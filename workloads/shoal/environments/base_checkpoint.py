"""The base model of a run: made, taken from another run, mounted or downloaded; its files are put into the store.

In: a run's `model`. Out: a folder with a checkpoint, or CannotPrepare, whose words name the field to change. Files are
streamed, never held whole: 65 GB take what the link and the disk take.
"""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from shoal import telemetry
from shoal.contracts import keys
from shoal.contracts.datasets import filter_run
from shoal.contracts.final_model import ORIGIN_FILE, FinalModel
from shoal.contracts.proof_profile import PROFILE_FILE
from shoal.contracts.run import RunConfig
from shoal.environments import hub
from shoal.environments.arithmetic import Arithmetic
from shoal.environments.offline_filter import sampled_model
from shoal.environments.run_checks import CannotPrepare
from shoal.environments.slips import COURSES
from shoal.environments.task_source import RunSource
from shoal.environments.tool import Tool
from shoal.files import file_sha256
from shoal.storage import NotFound, Store, open_store_of

MODEL_SUFFIXES = (".json", ".safetensors", ".txt", ".model", ".jinja")
"""Files of a checkpoint that are imported: configuration, tokenizer, weights. No pickles (`.bin`, `.pt`), they run code when they are read."""


def bring(config: RunConfig, sources: list[RunSource], folder: Path) -> tuple[Path, float | None]:
    """The folder with the checkpoint (`folder` itself, or where it is mounted), and the pass rate of a model that was made or filtered with."""
    shutil.rmtree(folder, ignore_errors=True)
    rule = config.tasks.sampled_filter
    if rule is not None and rule.model is None:
        rate = sampled_model(open_store_of(filter_run(config.run), config), folder)
        if config.quantization is not None:  # the filter's run sampled with the published weights
            (folder / PROFILE_FILE).unlink(missing_ok=True)
        return folder, rate
    if config.model.generated is not None:
        return folder, _generate(config, sources, folder)
    if config.model.path is not None:
        return checked_checkpoint(Path(config.model.path)), None
    if config.model.run is not None:
        return _of_run(config, config.model.run, folder), None
    return _download(config, folder), None


def look_at_model(config: RunConfig, folder: Path) -> None:
    """Raises CannotPrepare for a base model that is not there, before golds are proven, which takes half an hour."""
    model, rule = config.model, config.tasks.sampled_filter
    if rule is not None and rule.model is None:
        return  # the run that sampled has it
    if model.path is not None:
        checked_checkpoint(Path(model.path))
    elif model.hugging_face is not None:
        with _of_hub():
            hub.model_config(model.hugging_face, str(model.revision), folder)


@contextlib.contextmanager
def _of_hub() -> Iterator[None]:
    """Turn what is wrong with the hub's model into CannotPrepare."""
    try:
        yield
    except hub.HubRefused as error:
        raise CannotPrepare(f"spec.model.huggingFace: {error}", passing=error.passing) from error


def checked_checkpoint(folder: Path) -> Path:
    """The folder, if it is a checkpoint of ours to serve: configuration, tokenizer and safetensors. Raises CannotPrepare."""
    if not folder.is_dir():
        raise CannotPrepare(f"spec.model.path: {folder} is not a folder; mount the checkpoint there")
    for needed in ("config.json", "tokenizer.json"):
        if not (folder / needed).is_file():
            raise CannotPrepare(f"spec.model.path: {folder} lacks {needed}; a Hugging Face checkpoint has it")
    if not any(folder.glob("*.safetensors")):
        raise CannotPrepare(f"spec.model.path: {folder} has no *.safetensors; save the model with safetensors")
    return folder


def _generate(config: RunConfig, sources: list[RunSource], folder: Path) -> float:
    # torch takes seconds to import, and a run that is prepared, or brings its model, needs none.
    from shoal.environments.generated_model import WarmStartFailed, make_model

    assert config.model.generated is not None
    name = config.model.generated.name
    wanted = COURSES[name][0]
    for source in sources:
        if not isinstance(source.environment, wanted):
            raise CannotPrepare(
                f"spec.model.generated: the model is made for the tasks of {wanted.name!r}, {source.field}.environment is"
                f" {source.environment.name!r}; set that to {wanted.name!r}, or give the model by huggingFace or path"
            )
    environment = sources[0].environment
    assert isinstance(environment, Arithmetic | Tool)
    log = telemetry.get_logger()
    lengths = [source.lengths(config) for source in sources]
    asked = dict.fromkeys(target for each in lengths if each is not None for target in each.targets)
    targets: list[int | None] = [*asked] or [None]
    try:
        return make_model(
            folder,
            environment,
            targets,
            config.model.generated,
            config.sft.max_sequence_length if config.sft is not None else config.recipe.max_sequence_length,
            config.seed,
            lambda step, loss, rate: log.info("warm start", step=step, loss=round(loss, 4), pass_rate=round(rate, 3)),
        )
    except WarmStartFailed as error:  # the same seed fails again
        raise CannotPrepare(f"spec.model.generated: {error}") from error


def _of_run(config: RunConfig, run: str, folder: Path) -> Path:
    """The model that another run trained; every file must match its seal."""
    store = open_store_of(run, config)
    folder.mkdir(parents=True)
    try:
        seal = FinalModel.from_json(store.get(keys.FINAL_SEAL))
        for name, digest in seal.files.items():
            if name == PROFILE_FILE:
                continue  # of the weights that the other run began with; these are others, and are measured again
            store.get_to_file(keys.FINAL_MODEL + name, folder / name)
            found = file_sha256(folder / name)
            if found != digest:
                raise CannotPrepare(
                    f"spec.model.run: {keys.FINAL_MODEL}{name} of run {run} has SHA-256 {found}, but its seal says {digest}"
                )
    except NotFound as error:
        raise CannotPrepare(
            f"spec.model.run: run {run} has no result: {error} of that run; give the name of a run of mode Train or SFT that is complete and has"
            " the same spec.storage"
        ) from error
    telemetry.get_logger().info("took the model of another run", run=run, version=seal.version, model=seal.model_id)
    return checked_checkpoint(folder)


def _download(config: RunConfig, folder: Path) -> Path:
    """A repository of a Hugging Face hub at its pinned revision."""
    from huggingface_hub import snapshot_download

    name, revision = config.model.hugging_face, config.model.revision
    if name is None:
        raise CannotPrepare("spec.model: no source is given; allowed: one of huggingFace, path, generated, run")
    with _of_hub(), hub.explained(name, str(revision), "model"):
        snapshot_download(
            name,
            revision=revision,
            local_dir=folder,
            allow_patterns=[f"*{suffix}" for suffix in MODEL_SUFFIXES],
        )
    return checked_checkpoint(folder)


def upload(store: Store, folder: Path) -> None:
    """The checkpoint's own files; what an earlier try left there under another name goes."""
    files = [
        path
        for path in sorted(folder.iterdir())
        if path.is_file() and path.suffix in MODEL_SUFFIXES and path.name != ORIGIN_FILE  # of another run's model
    ]
    wanted = {keys.BASE_MODEL + path.name for path in files}
    for info in store.list(keys.BASE_MODEL):
        if info.key not in wanted:
            store.delete(info.key)
    for path in files:
        store.put_file(keys.BASE_MODEL + path.name, path)
        telemetry.get_logger().info("wrote a base model file", file=path.name, bytes=path.stat().st_size)
