"""The fault injection: every answer is compared with the truth while faults come and go."""
