"""Prompts elsewhere: a proxy in front of engines that compute prompts, and of others that decode.

Each engine is a process of its own with OpenAI's API, here or on another host. The proxy sends a request to one of each
kind at the same time; keys and values go from engine to engine, and never through here. An engine that decodes and gets
none computes the prompt itself: so a request needs one engine that decodes, and nothing else.
"""
