"""What a scale-up spends its time on: recorded for each, drawn, and predicted for the next."""
