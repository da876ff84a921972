#!/usr/bin/env bash
# Runs what `tests/native` promises, and the main job, with the ARM wheel of dist/ on an emulated processor: Debian 12's
# Python 3.11 for ARM, by qemu-user. Needs debootstrap and qemu-user-static; for the main job, that try_wheels.sh... 
#
#   packaging/try_arm.sh [FOLDER]    keeps the Python and the packages in FOLDER for the next run
set -euo pipefail
cd "$(dirname "$0")/.."
