"""One model on several devices: the processes that compute it together, and what each of them reads and runs."""
