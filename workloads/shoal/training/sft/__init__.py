"""Supervised fine-tuning: the method of runs of `mode: SFT`. Policy, packing, head, optimizer, states and delivery are those of every run."""
