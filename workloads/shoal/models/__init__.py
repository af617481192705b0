"""What the trainer, the validators and calibration must know alike of models in transformers: names of their tensors, and their logits."""
