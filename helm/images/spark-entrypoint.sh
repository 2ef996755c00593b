#!/usr/bin/env bash
# The image's entrypoint: an executor where Spark on Kubernetes starts one, else a command of `loadmanager history`.
# An executor gets Delta and the Kafka connector from its driver, which has them in the image.
set -euo pipefail
if [ "${1:-}" != executor ]; then
  exec loadmanager history "$@"
fi
options=()
while IFS='=' read -r -d '' name value; do
  case $name in SPARK_JAVA_OPT_*) options+=("$value") ;; esac
done < <(env -0)
exec java "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
  -cp "${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$SPARK_HOME/jars/*" \
  org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
  --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
  --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
  --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
