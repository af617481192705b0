"""What this machine says of itself at discovery: its hardware, and what lets it in (a pod's ticket, a stranger's invite code). Called by `session`.

Secrets are read again each time: they may come later than the agent.
"""

from shoal.agent import hardware
from shoal.contracts.pools import CodeClaim, claim_with_code, membership_proof
from shoal.contracts.protocol import Registration
from shoal.contracts.run import NodeConfig, home
from shoal.contracts.signed import Signed
from shoal.crypto.keys import PrivateKey
from shoal.installed import installed_release
from shoal.telemetry import get_logger


def own_registration(config: NodeConfig, key: PrivateKey) -> Registration:
    """The registration of this machine, as it is now."""
    return Registration(
        node=key.public,
        run=config.run,
        pool=config.pool,
        software_version=installed_release(),
        hardware=hardware.detect(home()),
        proof=_proof(key.public),
        code=_code(config, key.public),
        quantization=config.quantization,
    )


def _proof(node: str) -> str | None:
    """Proof that this is one of its pool's own pods, or None on a stranger's machine."""
    try:
        ticket = (home() / "secrets" / "ticket").read_text()
    except FileNotFoundError:
        return None
    return membership_proof(bytes.fromhex(ticket.strip()), node)


def _code(config: NodeConfig, node: str) -> Signed[CodeClaim] | None:
    """The claim by the invite code in `secrets/invite_code` for this node; None without a code."""
    try:
        code = (home() / "secrets" / "invite_code").read_text()
    except FileNotFoundError:
        return None
    try:
        return claim_with_code(code, config.run, config.pool, node)
    except ValueError as error:
        get_logger().error("ignoring the invite code", problem=str(error), file="secrets/invite_code")
        return None
