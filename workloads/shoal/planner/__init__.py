"""What a model needs, in closed form: parameters, memory by cause, and how GPUs are divided between a run's parts. No torch, no I/O.

Called by `shoal init`; it imports nothing of ours, so that the operator may use it.
"""
