# The control plane: web, Celery worker, beat, route publisher and usage ingest are one image with five commands.
FROM python:3.11.16-slim@sha256:e41613d42d4891e4930f79523f93f81bbc7632584ec65e36ab055f41a800b41e AS web
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=/app PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 \
    DJANGO_SETTINGS_MODULE=controlplane.settings
# What WeasyPrint sets invoices with, and letters to set them in.
RUN apt-get update && apt-get install -y --no-install-recommends libpango-1.0-0 libpangoft2-1.0-0 libharfbuzz-subset0 fonts-dejavu-core \
 && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin graftwork \
 && install -d -o graftwork -g graftwork /app/var /models /state
WORKDIR /app
ARG PIP_FIND_LINKS
COPY requirements.txt constraints.txt deploy/docker/requirements.py ./
RUN python requirements.py controlplane > /tmp/requirements.txt \
 && pip install --root-user-action ignore --no-deps --require-hashes --only-binary :all: -r /tmp/requirements.txt

COPY deploy/docker/health.py deploy/docker/bucket.py deploy/docker/
# Of the other planes only the HTTP server: an import of anything else fails here, not in production.
COPY contracts contracts
COPY gateway/__init__.py gateway/
COPY gateway/http gateway/http
COPY manage.py ./
COPY templates templates
COPY static static
# The stored runs of the presets are among them.
COPY benchmarks/results benchmarks/results
COPY controlplane controlplane
# A checkout made under a strict umask is not readable to the image's user.
RUN chmod -R a+rX /app
USER graftwork
EXPOSE 8000
CMD ["python", "-m", "controlplane.web_server", "--host", "0.0.0.0", "--port", "8000"]

# What fills a fresh installation with the demo's tenants and adapters.
FROM web AS seed
USER root
COPY deploy/docker/seed.py deploy/docker/
COPY demo demo
RUN chmod -R a+rX /app
USER graftwork
CMD ["python", "deploy/docker/seed.py"]

# The same with the worker's packages: what takes optimization jobs. It has a compiler, for recipes that compile ahead
# of time; the loops of its own comparisons are compiled here, as the worker's image has them.
FROM web AS optimizer
USER root
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY kernels/native /native
RUN python /native/build.py /compiled && chmod -R a+rX /compiled
ENV GRAFTWORK_WORKER_CACHE_DIR=/compiled
ARG PIP_FIND_LINKS
ARG TORCH_INDEX
# That index is asked for torch alone: it could offer any package under a name that is installed here.
RUN python requirements.py worker > /tmp/worker.txt \
 && pip install --root-user-action ignore --no-deps --require-hashes --only-binary :all: -r /tmp/worker.txt \
 && pip install --root-user-action ignore ${TORCH_INDEX:+--no-deps --index-url "$TORCH_INDEX"} -c constraints.txt torch \
 && install -d -o graftwork -g graftwork /app/var/optimization
COPY kernels kernels
COPY worker_engine worker_engine
COPY optimizer optimizer
RUN chmod -R a+rX /app
USER graftwork
CMD ["celery", "-A", "controlplane.celery", "worker", "-Q", "graftwork.optimize.cpu", "--concurrency", "1", "--loglevel", "INFO"]
