"""The report of a run: what was measured while it ran, gathered from its object store and from samples of its parts.

`sampler` records (called by `shoal up`), `facts` and `collect` gather, `plots`, `html` and `write` make `report.html` and `report.json`. Every
figure is taken from what happened; what is missing is null with a note.
"""
