# The gateway: no Django, no torch, no boto3.
FROM python:3.11.16-slim@sha256:e41613d42d4891e4930f79523f93f81bbc7632584ec65e36ab055f41a800b41e
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=/app PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# The log's folder belongs to the user: a new named volume takes over the owner of what it covers.
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin graftwork \
 && install -d -o graftwork -g graftwork /wal
WORKDIR /app
ARG PIP_FIND_LINKS
COPY requirements.txt deploy/docker/requirements.py ./
RUN python requirements.py gateway observability > /tmp/requirements.txt \
 && pip install --root-user-action ignore --no-deps --require-hashes --only-binary :all: -r /tmp/requirements.txt

COPY deploy/docker/health.py deploy/docker/health.py
COPY contracts contracts
COPY gateway gateway
# A checkout made under a strict umask is not readable to the image's user.
RUN chmod -R a+rX /app
USER graftwork
EXPOSE 8001
CMD ["python", "-m", "gateway"]
