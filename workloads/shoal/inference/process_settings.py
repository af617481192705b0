"""Environment variables of a process that runs an engine; they are read when torch and vLLM are loaded, so they come before every import of those.

Called first by `__main__`, and by `engine` for whoever imports that alone.
"""

import os

ENGINE_VARIABLES = {
    # With a core process apart, hooks and swaps would go through pickles.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # Dynamo would compile for minutes on a CPU.
    "TORCHDYNAMO_DISABLE": "1",
    # The pool is how a machine's cores are used. Two engines with two threads each on two cores spend nine tenths of their time in
    # OpenMP's barriers: 270 tokens a CPU second where one thread each gives 4,300.
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    # Everything is in the checkpoint; nobody is asked on the network.
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}


def set_engine_variables() -> None:
    """Give each variable its value unless it has one."""
    for name, value in ENGINE_VARIABLES.items():
        os.environ.setdefault(name, value)
