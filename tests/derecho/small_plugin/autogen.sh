#!/usr/bin/env bash
# As the plugin's: makes configure.
set -euo pipefail
cp configure.in configure
chmod +x configure
