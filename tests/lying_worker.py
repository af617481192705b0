"""A worker that does all the work and claims that every answer is right: the program of its container, in place of the real one's."""

LIE = """import shoal.inference.worker as w
from shoal.inference.__main__ import main
honest = w.assemble
w.assemble = lambda *given: honest(*given[:-1], lambda *_: 1.0)
main()
"""
