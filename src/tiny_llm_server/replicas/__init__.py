"""Several engines behind one HTTP side: replicas on Ray Serve.

The HTTP side is the app of `server.py`, in a process of its own. It encodes prompts and writes answers; token ids go to
a replica, and pieces come back. So it can send a request again when its replica dies, which a proxy of Ray cannot.
Only `token_router.py` and `deployments.py` import Ray.
"""
