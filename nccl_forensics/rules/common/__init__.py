"""What several rules say or ask alike; no rule is in here."""
