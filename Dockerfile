# syntax=docker/dockerfile:1
# Two images from one file:
#   operator  the operator and the coordinator (python -m regroup_trainer.coordinator); no torch
#   trainer   the agent and the ranks (python -m regroup_trainer.agent)
# Dependencies come first and our own code last, so that a change of the code adds one small layer.
#
# Secrets, all optional and never part of a layer: `ca` is a CA bundle, `environment` a file of `export NAME=value`
# lines (package indexes, proxies).
ARG BASE_IMAGE=python:3.12-slim-bookworm

# --- the tools of the build, mounted into later stages and never copied ---------------------------------------------
FROM ${BASE_IMAGE} AS tools
COPY requirements/build.txt /requirements/
RUN --mount=type=secret,id=ca --mount=type=secret,id=environment \
    set -eu; \
    if [ -s /run/secrets/environment ]; then . /run/secrets/environment; fi; \
    if [ -s /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca SSL_CERT_FILE=/run/secrets/ca; fi; \
    python3 -m venv /opt/tools; \
    /opt/tools/bin/pip install --quiet --no-cache-dir --disable-pip-version-check --requirement /requirements/build.txt

FROM tools AS wheel
WORKDIR /source
COPY pyproject.toml LICENSE README.md ./
COPY operator operator
COPY trainer trainer
COPY client client
RUN /opt/tools/bin/uv build --quiet --offline --wheel --no-build-isolation --python /opt/tools/bin/python --out-dir /wheel

# --- what both images share ----------------------------------------------------------------------------------------
FROM ${BASE_IMAGE} AS runtime
RUN groupadd --gid 1000 regroup \
    && useradd --uid 1000 --gid 1000 --create-home --home-dir /home/regroup --shell /usr/sbin/nologin regroup \
    && python3 -m venv --without-pip /opt/regroup
# The root file system may be read-only: byte code is compiled here and never written at run time.
ENV PATH=/opt/regroup/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    HOME=/home/regroup \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
LABEL org.opencontainers.image.title="regroup" \
      org.opencontainers.image.description="Elastic, fault-tolerant distributed PyTorch training on Kubernetes" \
      org.opencontainers.image.licenses="Apache-2.0"
WORKDIR /home/regroup
STOPSIGNAL SIGTERM
# Exec form: the product is process 1 and gets the kubelet's SIGTERM itself.
ENTRYPOINT ["python", "-m"]

# --- the dependencies of each image ----------------------------------------------------------------------------------
FROM runtime AS operator-dependencies
ARG UV_CACHE_DIR=/var/cache/uv
COPY requirements/operator.txt /opt/regroup/requirements.txt
RUN --mount=type=bind,from=tools,source=/opt/tools,target=/opt/tools \
    --mount=type=cache,target=/var/cache/uv \
    --mount=type=secret,id=ca --mount=type=secret,id=environment \
    set -eu; \
    if [ -s /run/secrets/environment ]; then . /run/secrets/environment; fi; \
    if [ -s /run/secrets/ca ]; then export SSL_CERT_FILE=/run/secrets/ca; fi; \
    UV_LINK_MODE=copy /opt/tools/bin/uv pip install --quiet --python /opt/regroup/bin/python --compile-bytecode \
        --cache-dir "$UV_CACHE_DIR" --requirement /opt/regroup/requirements.txt

FROM runtime AS trainer-dependencies
ARG UV_CACHE_DIR=/var/cache/uv
# 1 leaves out what training on CPUs never loads (Triton, most of cuDNN, cuSOLVER, cuRAND, NVSHMEM, headers and static
# libraries): 5.4 GB become 3.2 GB. For clusters without GPUs where only torch's CUDA build can be had.
ARG TORCH_SLIM=0
COPY requirements/trainer.txt /opt/regroup/requirements.txt
COPY tools/slim_torch.sh /tmp/slim_torch.sh
RUN --mount=type=bind,from=tools,source=/opt/tools,target=/opt/tools \
    --mount=type=cache,target=/var/cache/uv \
    --mount=type=secret,id=ca --mount=type=secret,id=environment \
    set -eu; \
    if [ -s /run/secrets/environment ]; then . /run/secrets/environment; fi; \
    if [ -s /run/secrets/ca ]; then export SSL_CERT_FILE=/run/secrets/ca; fi; \
    UV_LINK_MODE=copy /opt/tools/bin/uv pip install --quiet --python /opt/regroup/bin/python \
        --cache-dir "$UV_CACHE_DIR" --requirement /opt/regroup/requirements.txt; \
    if [ "$TORCH_SLIM" = 1 ]; then sh /tmp/slim_torch.sh /opt/regroup; fi; \
    python -m compileall -q -j 0 /opt/regroup/lib || true; \
    rm /tmp/slim_torch.sh

# --- the images ------------------------------------------------------------------------------------------------------
FROM operator-dependencies AS operator
RUN --mount=type=bind,from=tools,source=/opt/tools,target=/opt/tools \
    --mount=type=bind,from=wheel,source=/wheel,target=/wheel \
    /opt/tools/bin/uv pip install --quiet --offline --no-cache --no-deps --compile-bytecode \
        --python /opt/regroup/bin/python /wheel/*.whl
USER 1000:1000
CMD ["regroup_operator"]

FROM trainer-dependencies AS trainer
RUN --mount=type=bind,from=tools,source=/opt/tools,target=/opt/tools \
    --mount=type=bind,from=wheel,source=/wheel,target=/wheel \
    /opt/tools/bin/uv pip install --quiet --offline --no-cache --no-deps --compile-bytecode \
        --python /opt/regroup/bin/python /wheel/*.whl
USER 1000:1000
CMD ["regroup_trainer.agent"]
