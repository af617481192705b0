"""From a trained version to a served model. `promotion` moves the tags of a run's store, and `following` keeps a folder on what a tag names. `image`
and `registry` make an OCI image of it. Called by `shoal serving`; its store access is a person's or a serving pod's, never a worker's.
"""
