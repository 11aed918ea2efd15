"""Fused operators beside the paper's: what training and generation spend their time on, next to the convolutions."""
