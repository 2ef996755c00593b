# The image of brokers: `docker build -f helm/images/broker.Dockerfile -t loadmanager .` in a clone.
# Yours, with your service in it, is made FROM this one: docs/kubernetes.md.
FROM python:3.12-slim-bookworm AS build
WORKDIR /src
COPY requirements/runtime.lock requirements/runtime.lock
RUN python -m venv /opt/loadmanager \
    && /opt/loadmanager/bin/pip install --no-cache-dir --require-hashes --only-binary :all: --no-binary pure-sasl \
        -r requirements/runtime.lock
COPY . .
RUN /opt/loadmanager/bin/pip install --no-cache-dir --no-deps . \
    && /opt/loadmanager/bin/python -m compileall -q /opt/loadmanager \
    && /opt/loadmanager/bin/python tools/sbom.py requirements/runtime.lock > /opt/loadmanager/sbom.cdx.json

FROM python:3.12-slim-bookworm
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG SOURCE=unknown
LABEL org.opencontainers.image.title="loadmanager" \
      org.opencontainers.image.description="A broker that shares the bundles of a sharded service with others" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.source="$SOURCE" \
      loadmanager.sbom="/opt/loadmanager/sbom.cdx.json"
COPY --from=build /opt/loadmanager /opt/loadmanager
ENV PATH=/opt/loadmanager/bin:$PATH HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /tmp
ENTRYPOINT ["loadmanager"]
