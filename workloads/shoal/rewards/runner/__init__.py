"""The runner: a pod of its own in which programs are judged, away from validators, workers and their keys.

`service` answers `POST /v1/programs` with a pool of sandboxes; `slots` says how many programs fit into the pod; `__main__` starts both.
"""
