"""What follows from findings and tables: the verdict, the outcome of runs, gaps, the checklist, and the report of the contract."""
