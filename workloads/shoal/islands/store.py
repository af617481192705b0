"""Where the ranks of a meeting find each other: torch's key-value store, listening at this island's own address.

In: an address to bind. Out: `host:port`, which goes into notices. The meeting uses the store of its first island; a store that is gone with
its island ends no more than that meeting. Called by `island`, on the leader.
"""

import socket
from datetime import timedelta

import torch.distributed as dist

TIMEOUT_SECONDS = 60.0


class MeetingStore:
    """Listens until the process ends. `bind` is the address to listen at, `advertised` what the others reach it by."""

    def __init__(self, bind: str, advertised: str | None = None) -> None:
        listener = socket.create_server((bind, 0), family=socket.AF_INET6 if ":" in bind else socket.AF_INET)
        port = listener.getsockname()[1]
        self._store = dist.TCPStore(
            bind,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=TIMEOUT_SECONDS),
            # torch would listen at every address of the machine.
            master_listen_fd=listener.detach(),
        )
        self.address = f"{advertised or bind}:{port}"
