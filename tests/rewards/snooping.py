"""A judge's process that is asked for files: says whether it could read each. Started by `test_judging`."""

import json
import sys
from pathlib import Path

from shoal.rewards.judging import lock_in


def main() -> None:
    lock_in()
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            Path(json.loads(line)).read_bytes()
            reply = "read"
        except OSError as error:
            reply = type(error).__name__
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
