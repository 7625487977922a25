# The worker on CPU. By default pip takes the CUDA build of torch, which runs on CPU too and is several GB larger:
# build with --build-arg TORCH_INDEX=<index of CPU wheels>, or PIP_FIND_LINKS=<folder of wheels in the base image>.
FROM python:3.11.16-slim@sha256:e41613d42d4891e4930f79523f93f81bbc7632584ec65e36ab055f41a800b41e AS native
# The CPU's decode loops, compiled here so that the worker's image needs no compiler.
RUN apt-get update && apt-get install -y --no-install-recommends g++
COPY kernels/native /native
RUN python /native/build.py /compiled && chmod -R a+rX /compiled

FROM python:3.11.16-slim@sha256:e41613d42d4891e4930f79523f93f81bbc7632584ec65e36ab055f41a800b41e AS worker
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=/app PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin graftwork \
 && install -d -o graftwork -g graftwork /models /cache
WORKDIR /app
ARG PIP_FIND_LINKS
ARG TORCH_INDEX
COPY requirements.txt constraints.txt deploy/docker/requirements.py ./
# That index is asked for torch alone: it could offer any package under a name that is installed here.
RUN python requirements.py worker observability > /tmp/requirements.txt \
 && pip install --root-user-action ignore --no-deps --require-hashes --only-binary :all: -r /tmp/requirements.txt \
 && pip install --root-user-action ignore ${TORCH_INDEX:+--no-deps --index-url "$TORCH_INDEX"} -c constraints.txt torch

COPY deploy/docker/health.py deploy/docker/health.py
COPY --from=native /compiled /compiled
ENV GRAFTWORK_WORKER_CACHE_DIR=/compiled
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

# What downloads and converts the demo model into the /models volume: transformers stays out of the worker.
FROM worker AS model
USER root
RUN python requirements.py demo > /tmp/requirements.txt \
 && pip install --root-user-action ignore --no-deps --require-hashes --only-binary :all: -r /tmp/requirements.txt \
 && install -d /app/var && ln -s /models /app/var/models
COPY demo demo
RUN chmod -R a+rX /app
USER graftwork
ENTRYPOINT ["python", "-m", "demo.model"]

# The local SageMaker, whose copies are workers of this same image.
FROM worker AS sagemaker-local
USER root
RUN python requirements.py sagemaker-local > /tmp/requirements.txt \
 && pip install --root-user-action ignore --no-deps --require-hashes --only-binary :all: -r /tmp/requirements.txt \
 && install -d -o graftwork -g graftwork /sagemaker
COPY sagemaker_local sagemaker_local
RUN chmod -R a+rX /app
USER graftwork
EXPOSE 8090
ENTRYPOINT ["python", "-m", "sagemaker_local"]
