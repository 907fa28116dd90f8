"""The serving benchmark: a load sent to OpenAI-compatible servers, and the latencies that its clients see."""
