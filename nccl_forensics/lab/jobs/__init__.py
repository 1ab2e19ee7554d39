"""Training jobs of the lab: copied beside the evidence of a run and started there by torchrun, so they import nothing of this package."""
