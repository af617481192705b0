"""DiLoCo islands: trainers far apart that exchange what they learnt every few hundred updates instead of every gradient.

Pure: `encoding` (what travels), `judgement` (how much each island counts), `outer` (the step that all make alike), `head` (which state is the
shared one). Edge: `members` (who takes part, by torchft's lighthouse), `group` (torchft's process group), `island` (one exchange from end to end),
`lighthouse` (the process that islands meet at). See docs/diloco.md.
"""
