"""Nodes: their records and states, invites, admission, and what an admin does about them."""
