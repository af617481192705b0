"""The node agent: keeps the node's key and membership, and serves the Unix socket of the machine's other processes."""
