"""The ledger: entries, their chain and Merkle tree, who writes and who checks them, and what a reader sees."""
