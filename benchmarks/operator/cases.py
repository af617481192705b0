"""Bad days of an administrator, tried on a real API server with the real controllers and the operator: `python -m benchmarks.operator --cases`.

The rows are those of `tests/operator/cluster/tried_cases.yaml`. `admin_cases` counts those that were tried, `admin_cases_without_cause` those whose
cause was not in a condition and in `kubectl describe` a minute after it was there. 250 cases take some ten minutes on two quiet cores.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.operator.cluster import (
    ACCOUNT,
    OPERATOR_NAMESPACE,
    OWN,
    ControlPlane,
    HollowNode,
    Kube,
    Loopback,
    OperatorProcess,
    Orchestrators,
    Stage,
    find_programs,
    install_operator,
    read_cases,
    shipped_crds,
    wait,
)
from benchmarks.operator.measures import percentile


def measure_cases(
    folder: Path, loopback: Loopback, words: str, patience: float, say: Callable[[str], None]
) -> dict[str, Any]:
    """Try all cases, or those whose name has `words`; what was not said is printed."""
    plane = ControlPlane(loopback.address(), folder, find_programs())
    services, operator = Orchestrators(loopback.address()), None
    try:
        plane.start(shipped_crds())
        kube = Kube(plane.kubeconfig)
        kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OPERATOR_NAMESPACE}})
        install_operator(kube, "--all-namespaces")
        node = HollowNode(kube)
        node.start()
        account = plane.account_kubeconfig(kube, OPERATOR_NAMESPACE, ACCOUNT)
        operator = OperatorProcess(
            "cases", account, ["--all-namespaces"], folder / "operator", loopback, services.address
        )
        operator.start()
        wait("it to lead", operator.is_leader, 60)
        kinds = ",".join(f"{each.lower()}s" for each in OWN)
        stage = Stage(kube, node, services, lambda space: plane.kubectl("describe", kinds, "-n", space))
        cases = [each for each in read_cases() if words in each.done]
        say(f"trying {len(cases)} cases")
        outcomes = stage.try_cases(cases, patience, say)
        node.close()
        kube.close()
    finally:
        if operator is not None:
            operator.stop()
        services.close()
        plane.stop()
    told = sorted(each.seconds for each in outcomes if each.told and not each.case.refused)
    return {
        "admin_cases": len(outcomes),
        "admin_cases_without_cause": sum(not each.told for each in outcomes),
        "admin_case_seconds_p50": round(percentile(told, 0.5), 1) if told else 0.0,
        "admin_case_seconds_longest": round(told[-1], 1) if told else 0.0,
    }
