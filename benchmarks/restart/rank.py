"""A rank of a trainer until its group is formed, as `python -m shoal.training` begins: started by torchrun, prints a line when it is there."""

import time

import shoal.training.loop  # noqa: F401  the time of its imports is what is measured
from shoal.training.parallel import start_ranks


def main() -> None:
    ranks = start_ranks("cpu", deadline_seconds=120.0)
    ranks.all(True, "the group to be formed")
    if ranks.leader:
        print(f"formed {time.time()}", flush=True)
    ranks.close()


if __name__ == "__main__":
    main()
