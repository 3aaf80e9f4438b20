#!/bin/sh
# Installs pinned packages during a build of the Dockerfile.
#
#   install_dependencies.sh REQUIREMENTS VENV
#       installs into the image's virtual environment.
#   install_dependencies.sh --injected FOLDER 3.11 ...
#       installs into FOLDER the packages of the agent and its ranks for users' images, for each of
#       these Pythons (see trainer/regroup_trainer/agent/start.py).
#
# The requirement files are in /tmp/build. uv is in a temporary folder, so no layer contains it.
# Inputs: the optional build secrets `ca` (a CA bundle) and `environment` (export NAME=value lines),
# and the variable UV_CACHE_DIR.
set -eu
tools=$(mktemp -d)
if [ -s /run/secrets/environment ]; then . /run/secrets/environment; fi
if [ -s /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca SSL_CERT_FILE=/run/secrets/ca; fi
python3 -m venv "$tools"
"$tools/bin/pip" install --quiet --no-cache-dir --disable-pip-version-check --requirement /tmp/build/build.txt

# The cache and the layer are on different file systems, so uv must copy. Without this mode it warns.
install() { UV_LINK_MODE=copy "$tools/bin/uv" pip install --quiet "$@"; }

if [ "$1" = --injected ]; then
    folder=$2
    shift 2
    for version; do
        for part in ranks agent; do
            # torch itself requires glibc 2.28.
            install --python "$tools/bin/python" --only-binary :all: --python-version "$version" \
                --python-platform "$(uname -m)-manylinux_2_28" \
                --requirement "/tmp/build/injected-$part.txt" --target "$folder/$part/$version"
            rm -rf "$folder/$part/$version/bin" "$folder/$part/$version/.lock"
        done
    done
else
    install --python "$2/bin/python" --requirement "/tmp/build/$1"
    rm -f "$2/.lock"
fi
rm -rf "$tools"
