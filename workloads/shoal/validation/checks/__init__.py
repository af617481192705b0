"""The checks, one pure function a file. Each gets a readable file and facts and gives a `Finding`, or None when all
is well.

Cheap ones look at every row: `identity`, `bounds`, `sampling`, `replay`, `termination.check_ends`, `reward`, and the
shape of proofs. Expensive ones look at rows drawn by the validator, after a forward pass over them with the claimed
weights: `computation`, `token_sampling`, `termination.check_probabilities`.
"""
