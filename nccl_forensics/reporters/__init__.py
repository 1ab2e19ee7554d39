"""Reports: each module renders one kind of output from what an analysis found; ``base`` names those that can be asked for."""
