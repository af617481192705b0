"""How long `shoal ledger verify` takes over a ledger of a million entries, and what it holds in memory."""
