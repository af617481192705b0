"""What the trainer and vLLM make of each model type. Called as `python -m benchmarks.model_types`."""
