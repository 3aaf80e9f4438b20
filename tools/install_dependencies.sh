#!/bin/sh
# Installs pinned requirements into the image's virtual environment; runs in the Dockerfile only.
# Usage: install_dependencies.sh REQUIREMENTS VENV. uv lives in a temporary folder, so that no layer holds it.
# Reads the optional build secrets `ca` (a CA bundle) and `environment` (export NAME=value lines), and UV_CACHE_DIR.
set -eu
requirements=$1
venv=$2
tools=$(mktemp -d)
if [ -s /run/secrets/environment ]; then . /run/secrets/environment; fi
if [ -s /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca SSL_CERT_FILE=/run/secrets/ca; fi
python3 -m venv "$tools"
"$tools/bin/pip" install --quiet --no-cache-dir --disable-pip-version-check --requirement /tmp/build/build.txt
# The cache is another file system than the layer: copy, and say so, since uv would warn about it otherwise.
UV_LINK_MODE=copy "$tools/bin/uv" pip install --quiet --python "$venv/bin/python" --requirement "$requirements"
rm -rf "$tools" "$venv/.lock"
