"""The collector of a run of mode `Generate`: publishes the base model as version 0, and makes a data set of what was sampled from it.

It stands in the trainer's place (same Job, same key). Nothing here computes with the model: only its tokenizer is loaded.
"""
