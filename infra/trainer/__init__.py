"""Optimizer steps: the trainer group, one local rank or many."""
