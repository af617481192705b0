"""The validator: judges one submitted file at a time and signs what it found.

Way of a file: `service` claims and downloads it, `parsing` reads it in a child process, `judge` runs the checks of
`checks/` from cheap to expensive; in these `prefill` and `policies` give what the claimed weights make of the claimed
tokens; `service` signs the verdict and posts it.
"""
