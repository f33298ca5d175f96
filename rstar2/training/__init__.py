"""What of the algorithm needs torch: logprobs, losses, the training engine, weights."""
