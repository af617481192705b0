"""A release of Shoal from a checkout: `make release VERSION=x.y.z`.

`plan` and `policy` decide, `programs` calls Git, builders and the registry, `steps` makes the release, `__main__` is the command.
"""
