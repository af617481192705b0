"""Everything that crosses a process boundary in Shoal: schemas, manifests, keys, seeds and signatures.

Pure and small: no module here opens a socket, reads a clock or touches
the object store. None imports anything else of ours, so the operator, the command line and every role can share them. A change to the bytes of
anything here is a change of its version number.
"""
