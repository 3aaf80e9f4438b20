#!/bin/sh
# Puts the packages that the agent and its ranks need into a folder, for each Python that may be in a user's image: see
# trainer/regroup_trainer/agent/start.py. Runs in the Dockerfile only.
# Usage: vendor_agent.sh REQUIREMENTS_FOLDER TARGET. uv lives in a temporary folder, so that no layer holds it.
# Reads the optional build secrets `ca` (a CA bundle) and `environment` (export NAME=value lines), and UV_CACHE_DIR.
set -eu
requirements=$1
target=$2
tools=$(mktemp -d)
if [ -s /run/secrets/environment ]; then . /run/secrets/environment; fi
if [ -s /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca SSL_CERT_FILE=/run/secrets/ca; fi
python3 -m venv "$tools"
"$tools/bin/pip" install --quiet --no-cache-dir --disable-pip-version-check --requirement "$requirements/build.txt"
for version in 3.11 3.12 3.13; do
    for part in ranks agent; do
        # glibc 2.28 is what torch itself asks for.
        UV_LINK_MODE=copy "$tools/bin/uv" pip install --quiet --python "$tools/bin/python" --only-binary :all: \
            --python-version "$version" --python-platform "$(uname -m)-manylinux_2_28" \
            --requirement "$requirements/injected-$part.txt" --target "$target/$part/$version"
        rm -rf "$target/$part/$version/bin" "$target/$part/$version/.lock"
    done
done
rm -rf "$tools"
