"""Writers print the model's state as the real programs would. They know machines, processes and times, never a fault's name."""
