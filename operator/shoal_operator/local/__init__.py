"""A cluster on this machine: the operator's own objects, with processes instead of pods.

Used by `shoal up`. It runs what the builders make for Kubernetes, from
a short list of kinds and fields. It refuses the rest by name: so the builders cannot quietly come to need something that one machine does not have.
"""
