"""The loop of the server: many readers on an event loop, one thread that owns the device.

Day 3.6 fills both files: the stream of one request, and the loop that submits, steps, delivers and
stops. It knows no HTTP and no text.
"""
