# The image of the load history's jobs, for drivers and executors: Java, Python, Spark and the jars that it needs.
# Nothing is downloaded at run time. `docker build -f helm/images/spark.Dockerfile -t loadmanager-history .` in a clone.
FROM python:3.12-slim-bookworm AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jdk-headless maven \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY requirements/history.lock requirements/history.lock
RUN python -m venv /opt/loadmanager \
    && /opt/loadmanager/bin/pip install --no-cache-dir --require-hashes --only-binary :all: --no-binary pyspark \
        -r requirements/history.lock
COPY . .
ENV LOADMANAGER_HISTORY_JARS=/opt/loadmanager/jars
RUN /opt/loadmanager/bin/pip install --no-cache-dir --no-deps . \
    && /opt/loadmanager/bin/loadmanager history jars --s3 --no-archive \
    && ln -s "$(/opt/loadmanager/bin/python -c 'import pyspark; print(pyspark.__path__[0])')" /opt/loadmanager/spark \
    && /opt/loadmanager/bin/python -m compileall -q /opt/loadmanager \
    && /opt/loadmanager/bin/python tools/sbom.py requirements/history.lock --pom loadmanager/history/pom.xml \
        --jars /opt/loadmanager/jars > /opt/loadmanager/sbom.cdx.json

FROM python:3.12-slim-bookworm
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG SOURCE=unknown
LABEL org.opencontainers.image.title="loadmanager-history" \
      org.opencontainers.image.description="The jobs of loadmanager's load history on Spark" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.source="$SOURCE" \
      loadmanager.sbom="/opt/loadmanager/sbom.cdx.json"
# A name for the user: Hadoop's log-in wants one.
RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless procps tini \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 loadmanager \
    && useradd --uid 10001 --gid 10001 --home-dir /tmp --no-create-home --shell /usr/sbin/nologin loadmanager
COPY --from=build /opt/loadmanager /opt/loadmanager
COPY examples/history/job.py /opt/loadmanager/job.py
COPY helm/images/spark-entrypoint.sh /opt/loadmanager/entrypoint.sh
ENV PATH=/opt/loadmanager/bin:$PATH HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    LOADMANAGER_HISTORY_JARS=/opt/loadmanager/jars SPARK_HOME=/opt/loadmanager/spark \
    PYSPARK_PYTHON=/opt/loadmanager/bin/python
USER 10001:10001
WORKDIR /tmp
# Without -g: SIGTERM is for Python, which finishes the batch under way with the JVM that it started.
ENTRYPOINT ["tini", "--", "/opt/loadmanager/entrypoint.sh"]
