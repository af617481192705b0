"""`make e2e` asks a real Kueue where a program for one is named: the very tests that `make soak` runs on the stand-in."""

import pytest
from test_core_script import Checkout

from servers import ROOT

QUEUES = "tests/operator/cluster/test_queue_on_api_server.py"


@pytest.mark.parametrize(("named", "failing", "code"), [("", 0, 0), ("/opt/kueue", 0, 0), ("/opt/kueue", 1, 1)])
def test_the_tests_of_queues_run_before_the_others_and_their_failure_counts(
    tmp_path_factory: pytest.TempPathFactory, named: str, failing: int, code: int
) -> None:
    checkout = Checkout(tmp_path_factory.mktemp("checkout"))
    checkout.stand_in("tools/build.sh")
    checkout.act("pytest", f'echo "$3" >>asked; [[ $3 != {QUEUES} ]] || exit {failing}')
    variables = {"SHOAL_TEST_KUEUE": named} if named else {}
    found, said = checkout.run("e2e.sh", "--kubeconfig", "theirs", **variables)
    assert found == code, said
    assert (checkout.folder / "asked").read_text().split() == ([QUEUES] if named else []) + ["e2e"]
    assert (ROOT / QUEUES).is_file()
