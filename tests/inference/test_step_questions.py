"""What a worker says when its agent is refused a step: the reason once, for it asks every second."""

from pathlib import Path

from socket_agent import Agent, SocketAgent
from structlog.testing import capture_logs

from shoal.contracts.run import AgentState
from shoal.inference.agent import AgentClient


def test_a_refused_step_is_told_once_for_each_reason_and_again_after_another_answer(tmp_path: Path) -> None:
    agent = Agent(state=AgentState(node="ab" * 32, state="Healthy", trainer_key="cd" * 32), tasks=[])
    served = SocketAgent(tmp_path, agent)
    client = AgentClient(served.path)
    try:
        with capture_logs() as logs:
            for code in ["program-time-used"] * 3 + ["lease-dropped"] * 2 + ["", "lease-dropped"]:
                agent.refuse_steps = code
                assert client.step() is None
    finally:
        served.close()
    told = [line["reason"] for line in logs if line["log_level"] == "info"]
    assert told == ["409 Wait: ask again"] * 3
    assert len([line for line in logs if line["log_level"] == "debug"]) == 3
