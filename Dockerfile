# Two images from one file:
#   operator  the operator and the coordinator (python -m regroup_trainer.coordinator); no torch
#   trainer   the agent and the ranks (python -m regroup_trainer.agent)
# The layers of the dependencies are below our own code. A change of the code therefore makes one
# small new layer.
#
# Two optional build secrets: `ca` is a CA bundle, and `environment` is a file of `export NAME=value`
# lines (package indexes, proxies). No layer contains them.
# The newest Python that all dependencies support, including the optional ones.
ARG BASE_IMAGE=python:3.13-slim-trixie

# --- common to all stages: the user, an empty virtual environment, entry point and stop signal ----
FROM ${BASE_IMAGE} AS runtime
RUN groupadd --gid 1000 regroup \
    && useradd --uid 1000 --gid 1000 --create-home --home-dir /home/regroup --shell /usr/sbin/nologin regroup \
    && python3 -m venv --without-pip /opt/regroup
# The root file system may be read-only. The build compiles the byte code, and the container never
# writes any.
ENV PATH=/opt/regroup/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    HOME=/home/regroup \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
LABEL org.opencontainers.image.title="regroup" \
      org.opencontainers.image.description="Elastic, fault-tolerant distributed PyTorch training on Kubernetes" \
      org.opencontainers.image.licenses="Apache-2.0"
WORKDIR /home/regroup
STOPSIGNAL SIGTERM
# In exec form, the product is process 1 and receives the kubelet's SIGTERM itself.
ENTRYPOINT ["python", "-m"]

# --- our code in the empty environment; the build tools stay in this stage -------------------------
FROM runtime AS code
COPY requirements/build.txt /tmp/build/
RUN --mount=type=secret,id=ca --mount=type=secret,id=environment \
    set -eu; \
    if [ -s /run/secrets/environment ]; then . /run/secrets/environment; fi; \
    if [ -s /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi; \
    python3 -m venv /opt/tools; \
    /opt/tools/bin/pip install --quiet --no-cache-dir --disable-pip-version-check --requirement /tmp/build/build.txt
WORKDIR /source
COPY pyproject.toml LICENSE README.md ./
COPY operator operator
COPY trainer trainer
COPY client client
RUN /opt/tools/bin/uv build --quiet --offline --wheel --no-build-isolation --python /opt/tools/bin/python \
        --out-dir /tmp/wheel \
    && /opt/tools/bin/uv pip install --quiet --offline --no-cache --no-deps --compile-bytecode \
        --python /opt/regroup/bin/python /tmp/wheel/*.whl \
    && rm -f /opt/regroup/.lock

# --- the dependencies of each image ----------------------------------------------------------------
FROM runtime AS operator-dependencies
ARG UV_CACHE_DIR=/var/cache/uv
COPY tools/install_dependencies.sh requirements/build.txt requirements/operator.txt /tmp/build/
RUN --mount=type=cache,target=/var/cache/uv --mount=type=secret,id=ca --mount=type=secret,id=environment \
    sh /tmp/build/install_dependencies.sh operator.txt /opt/regroup \
    && python -m compileall -q -j 0 /opt/regroup/lib \
    && rm -r /tmp/build

# The packages that the operator injects into users' own images, beside our code.
FROM runtime AS agent-dependencies
ARG UV_CACHE_DIR=/var/cache/uv
COPY tools/install_dependencies.sh requirements/build.txt requirements/injected-ranks.txt requirements/injected-agent.txt /tmp/build/
RUN --mount=type=cache,target=/var/cache/uv --mount=type=secret,id=ca --mount=type=secret,id=environment \
    sh /tmp/build/install_dependencies.sh --injected /opt/agent 3.11 3.12 3.13 3.14 3.15 \
    && rm -r /tmp/build

FROM runtime AS trainer-dependencies
ARG UV_CACHE_DIR=/var/cache/uv
# 1 removes what training on CPUs never loads: Triton, most of cuDNN, cuSOLVER, headers, static
# libraries. The image shrinks from 5.4 GB to 3.2 GB. Use it for clusters without GPUs where only
# torch's CUDA build is available.
ARG TORCH_SLIM=0
COPY tools/install_dependencies.sh tools/slim_torch.sh requirements/build.txt requirements/trainer.txt /tmp/build/
# pip is for what a job adds (`packages=` of the Python client).
# Some of torch's .py files are templates. compileall reports them and continues.
RUN --mount=type=cache,target=/var/cache/uv --mount=type=secret,id=ca --mount=type=secret,id=environment \
    sh /tmp/build/install_dependencies.sh trainer.txt /opt/regroup \
    && /opt/regroup/bin/python -m ensurepip --default-pip > /dev/null \
    && if [ "$TORCH_SLIM" = 1 ]; then sh /tmp/build/slim_torch.sh /opt/regroup; fi \
    && { python -m compileall -q -j 0 /opt/regroup/lib || true; } \
    && rm -r /tmp/build

# --- the images ------------------------------------------------------------------------------------
FROM operator-dependencies AS operator
COPY --from=agent-dependencies /opt/agent /opt/agent
COPY --from=code /opt/regroup /opt/regroup
COPY trainer/regroup_trainer /opt/agent/code/regroup_trainer
USER 1000:1000
CMD ["regroup_operator"]

FROM trainer-dependencies AS trainer
COPY --from=code /opt/regroup /opt/regroup
USER 1000:1000
CMD ["regroup_trainer.agent"]
