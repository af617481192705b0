"""A cluster of kind's for the end-to-end tests, on Docker that is there or on Debian's, started for it and stopped again.

`engine` finds or starts Docker, `node_image` makes a node image where no registry has one, `cluster` makes the cluster, `machine` puts this machine
back as it was. By hand: `python -m e2e.kind up` and `down`.
"""
