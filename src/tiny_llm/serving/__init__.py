"""Policy: what to run next, in plain Python over integers. Imports no array library. Grows from Day 2.6 on."""
