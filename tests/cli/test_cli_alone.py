"""The command line installed alone, in a fresh environment without torch and Parquet: its size, the verbs that work, and what others say."""

from pathlib import Path

import pytest
from benchmarks.release.cli_alone import install, verbs_that_work

from shoal.cli.extras import lacking

MOST_MEGABYTES = 300


@pytest.mark.soak
def test_it_is_small_and_renders_plans_reports_and_reads_ledgers(tmp_path: Path) -> None:
    program, megabytes = install(tmp_path)
    assert megabytes < MOST_MEGABYTES
    packages = {path.name for path in (program.parent.parent / "lib").glob("python*/site-packages/*")}
    assert not {"torch", "pyarrow", "vllm", "transformers", "kubernetes"} & packages
    worked = verbs_that_work(program, tmp_path)
    assert [name for name, works in worked.items() if not works] == []


@pytest.mark.parametrize(
    ("module", "extra"),
    [("pyarrow.parquet", "data"), ("kopf", "operator"), ("torchft", "trainer"), ("trackio", "trackio")],
)
def test_a_verb_that_lacks_a_package_names_the_smallest_extra_that_brings_it(module: str, extra: str) -> None:
    line = lacking(ModuleNotFoundError(f"No module named {module!r}", name=module))
    package = module.partition(".")[0]
    assert (
        line
        == f"this needs {package}, which is not here: install the extra `{extra}` of shoal-rl in this Python environment"
    )


def test_a_module_that_no_extra_brings_is_a_mistake_of_ours() -> None:
    assert lacking(ModuleNotFoundError("No module named 'shoal.nothing'", name="shoal.nothing")) is None
    assert lacking(ModuleNotFoundError("no name")) is None
