# The worker on an NVIDIA GPU: torch's wheels bring CUDA, so the host needs only the driver and its container toolkit.
FROM python:3.11.16-slim@sha256:e41613d42d4891e4930f79523f93f81bbc7632584ec65e36ab055f41a800b41e
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=/app PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility TRITON_CACHE_DIR=/cache/triton
# Triton compiles a small launcher in C for each kernel at its first use.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin graftwork \
 && install -d -o graftwork -g graftwork /models /cache
WORKDIR /app
ARG PIP_FIND_LINKS
COPY requirements.txt constraints.txt deploy/docker/requirements.py ./
RUN python requirements.py worker observability > /tmp/requirements.txt \
 && pip install --root-user-action ignore --no-deps --require-hashes --only-binary :all: -r /tmp/requirements.txt \
 && pip install --root-user-action ignore -c constraints.txt torch

COPY deploy/docker/health.py deploy/docker/health.py
COPY contracts contracts
COPY kernels kernels
COPY worker_engine worker_engine
# A checkout made under a strict umask is not readable to the image's user.
RUN chmod -R a+rX /app && python -m compileall -q contracts kernels worker_engine
USER graftwork
EXPOSE 8002 8080
# SageMaker runs `serve`, and may name the port (SAGEMAKER_BIND_TO_PORT).
LABEL com.amazonaws.sagemaker.capabilities.accept-bind-to-port=true
ENTRYPOINT ["python", "-m", "worker_engine"]
