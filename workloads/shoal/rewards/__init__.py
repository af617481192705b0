"""What environments judge answers with: mathematical equivalence (`math`) and programs in a sandbox (`sandbox`).

A shared library beside `environments`: workers and validators run the same code. Nothing here knows of tasks or runs; an environment
gives an answer and what it should be, or a program and its input. It gets a judgement that is bounded in time and memory.
"""
