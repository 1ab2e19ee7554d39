"""Small values of the field and arithmetic with them: ranks and hosts in short forms, PCI addresses, units, intervals, chances."""
