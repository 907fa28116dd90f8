"""Puts the small model into the wheel, inside the engine's package, where `machine/repo.py` finds it."""

PLACE = "tiny_llm_engine/shipped"
MODEL = "tiny-qwen3"  # 5 MB; the mixture, which is nearly as large, stays in the repository
OF_TRAINING = "training_log.json"


def pdm_build_update_files(context, files):
    if context.target != "wheel":
        return
    for file in (context.root / "models" / MODEL).iterdir():
        if file.name != OF_TRAINING:
            files[f"{PLACE}/{MODEL}/{file.name}"] = file
