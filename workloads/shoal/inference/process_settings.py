"""Environment variables of a process that runs an engine; they are read when torch and vLLM are loaded, so they come before every import of those.

Called first by `__main__`, and by `engine` for whoever imports that alone.
"""

import multiprocessing
import os
import threading
from pathlib import Path

ENGINE_VARIABLES = {
    # With a core process apart, hooks and swaps would go through pickles.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # The proof hooks read the first of vLLM's two model runners, which its CPU build has as well (`vllm_hooks`).
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    # Ranks of a tensor-parallel engine on a CPU share its cores as the machine's scheduler has it; bound, each would want a NUMA node of its own.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # The pool is how a machine's cores are used. Two engines with two threads each on two cores spend nine tenths of their time in
    # OpenMP's barriers: 270 tokens a CPU second where one thread each gives 4,300.
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    # Everything is in the checkpoint; nobody is asked on the network.
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}


LOG_VARIABLES = ("VLLM_CONFIGURE_LOGGING", "VLLM_LOGGING_CONFIG_PATH", "VLLM_LOGGING_LEVEL")


DYNAMO = "TORCHDYNAMO_DISABLE"
GPU_DEVICES = (Path("/dev/nvidiactl"), Path("/dev/kfd"))
"""Device files of a container with a GPU of NVIDIA or AMD. Asking torch would load it."""


def compiles(chosen: bool | None) -> bool:
    """Whether the engine compiles its model: what the pool chose, else where there is a GPU. On a CPU it takes half a minute and gains little."""
    return chosen if chosen is not None else any(device.exists() for device in GPU_DEVICES)


def set_engine_variables(compiled: bool | None = None) -> None:
    """Give each variable its value unless it has one. `compiled` as in `EngineSettings`.

    Functions are marked for compilation when vLLM is loaded, so that the choice cannot wait for the engine; without it Dynamo is off, because it
    would still compile some of them, for minutes on a CPU.
    """
    for name, value in ENGINE_VARIABLES.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault(DYNAMO, "0" if compiles(compiled) else "1")


def set_log_variables() -> None:
    """Have vLLM write its warnings as our own lines, in processes that it starts as well: it brings handlers that look at no other settings.

    Called before `set_engine_variables`, by processes that write structured logs. An admin who sets one of `LOG_VARIABLES` gets vLLM's own lines.
    """
    if not any(name in os.environ for name in LOG_VARIABLES):
        os.environ["VLLM_LOGGING_CONFIG_PATH"] = str(Path(__file__).with_name("vllm_logging.json"))


def end_with_parent() -> None:
    """Let this process end with the one that started it through `multiprocessing`, however that ends; does nothing in others.

    vLLM asks its ranks to end when their parent is killed. A rank that waits in a collective for a peer on another host does not look. It kept its
    memory until somebody killed it: 1 GB on a CPU, that of a device on a GPU.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, name="end-with-parent", daemon=True).start()
