"""Nodes: their records and states, invites, admission, groups, and what an admin does about them."""
