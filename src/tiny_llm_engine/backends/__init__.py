"""What one array library does for the engine: devices, types, memory, sampling."""
