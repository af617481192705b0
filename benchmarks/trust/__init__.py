"""What lying costs and what finding it costs: honest and dishonest workers before the validators' own code.

`python -m benchmarks.trust` measures and writes `benchmarks/results/trust.json`; `tests/adversary` takes its weights, engine and
plans from here and sends what it makes through a running service.
"""
