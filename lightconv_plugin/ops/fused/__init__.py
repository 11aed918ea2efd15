"""Fused operators other than the convolutions, for the parts of training and generation that take the most time."""
