"""Keys of a running system are replaced: `python -m benchmarks.trust.key_rotation` runs the test that does it and records its figures.

Out: `key_rotation_*` in `benchmarks/results/trust_system.json`; other keys of that file stay. Takes some five minutes on two cores.
"""

from benchmarks.trust.system_figures import merge, recorded

TEST = "tests/system/test_key_rotation.py"


def main() -> None:
    """Run and record; exits as the test did where it fails."""
    merge(recorded(TEST, "key_rotation_"))


if __name__ == "__main__":
    main()
