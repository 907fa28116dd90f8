#!/usr/bin/env bash
# Gradescope runs this once, when it builds the image. The zip file to upload has the course as a folder tiny-llm, this
# file as setup.sh and gradescope-run as run_autograder.
# Not run at Gradescope yet: its commands were run on Linux x86-64.
set -euo pipefail
python3 -m pip install "pdm[locked]"
cd /autograder/source/tiny-llm
pdm install
