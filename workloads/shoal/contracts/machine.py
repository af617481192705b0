"""What a machine's owner says about what may run there: environment variables, never fields of a manifest."""

OWNERS_CHOICES = ("SHOAL_ENVIRONMENTS", "SHOAL_TRUSTED_ENVIRONMENTS", "SHOAL_SANDBOX")
"""They hold for every process that is started on the machine, by `shoal up` and by `shoal node join`. None holds a secret."""
