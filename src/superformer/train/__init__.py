"""Training a supernet: which sub-networks each step, losses, gradient rules, the loop, checkpoints."""
