"""What prepare reads: a volume of the admin's, and other runs whose results a run begins with. Which they are, and how it reaches them. Pure."""

from dataclasses import dataclass

from shoal.contracts.datasets import Mode, filter_run
from shoal_operator.api import TrainingRun
from shoal_operator.api.training_run import TrainingRunSpec
from shoal_operator.children import names
from shoal_operator.children.pods import Mount


@dataclass(frozen=True)
class Source:
    """One other run: the field that names it, below `spec`, and the modes that leave what is wanted there."""

    run: str
    field: str
    modes: tuple[Mode, ...]


def sources(spec: TrainingRunSpec) -> list[Source]:
    """The runs that this one needs the results of, in the order of the fields."""
    found = []
    if spec.model.run is not None:
        found.append(Source(spec.model.run, "model.run", ("Train", "SFT")))
    filtered_by = spec.tasks.sampled_filter.model if spec.tasks.sampled_filter is not None else None
    if filtered_by is not None and filtered_by.run is not None:
        place = "tasks.offlineFilter" if spec.tasks.mixture is None else "tasks.mixture[].offlineFilter"
        found.append(Source(filtered_by.run, f"{place}.model.run", ("Train", "SFT")))
    if spec.sft is not None and spec.sft.dataset.run is not None:
        found.append(Source(spec.sft.dataset.run, "sft.dataset.run", ("Generate",)))
    return found


DATA_FOLDER = "data"
"""Where `dataClaim` lies, below `/shoal`."""


def data_mounts(spec: TrainingRunSpec) -> tuple[Mount, ...]:
    """The volume with data of the admin's, to be read."""
    if spec.data_claim is None:
        return ()
    claim = {"persistentVolumeClaim": {"claimName": spec.data_claim, "readOnly": True}}
    return (Mount(DATA_FOLDER, claim, read_only=True),)


def is_restored(run: TrainingRun) -> bool:
    """Whether the run was made of a backup: what it took from other runs lies in its own store, and they need not be there any more."""
    return names.RESTORED_ANNOTATION in run.metadata.annotations


def source_mounts(run_name: str, spec: TrainingRunSpec) -> tuple[Mount, ...]:
    """Their folder stores, and that of the offline filter's run, at `others/<run>/`, to be read; runs in one bucket need no mount."""
    if not spec.storage.is_folder:
        return ()
    runs = dict.fromkeys(source.run for source in sources(spec))
    if spec.tasks.sampled_filter is not None:
        runs[filter_run(run_name)] = None
    return tuple(
        Mount(
            f"others/{run}",
            {"persistentVolumeClaim": {"claimName": names.store(run), "readOnly": True}},
            f"other-{number}",
            read_only=True,
        )
        for number, run in enumerate(runs)
    )
