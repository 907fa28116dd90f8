"""Steps of few shapes: padding, graphs, warm-up (Day 3.4)."""
