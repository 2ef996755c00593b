#!/usr/bin/env bash
# Runs a command of `loadmanager history` through spark-submit, here or on a cluster:
#
#   examples/history/submit.sh analyse --lake lake
#   MASTER=yarn examples/history/submit.sh ingest --lake hdfs:///lakes/east --log kafka://k1:9092 --follow
#   MASTER=spark://master:7077 CONF=examples/history/cluster.conf examples/history/submit.sh replay --lake s3a://lakes/east
#
# spark-submit decides where it runs and with how much; the command then needs neither --master nor --memory. On a
# cluster the executors need Python with loadmanager[history] (PYSPARK_PYTHON), or an archive of it (spark.archives).
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
python=${PYTHON:-$here/../../.venv/bin/python}
bin=$(cd "$(dirname "$python")" && pwd)
# Absolute, because an executor has a folder of its own; and not resolved, because a link in bin/ names its environment.
export PYSPARK_PYTHON=${PYSPARK_PYTHON:-$bin/$(basename "$python")}
options=$("$bin/loadmanager" history jars --spark-submit)
eval "delta=($options)" # they are quoted: the folder of the jars may have blanks

exec "${SPARK_SUBMIT:-$bin/spark-submit}" \
  --master "${MASTER:-local[2]}" \
  --driver-memory "${DRIVER_MEMORY:-2g}" \
  --conf "spark.log.level=${LOG_LEVEL:-ERROR}" \
  ${CONF:+--properties-file "$CONF"} \
  "${delta[@]}" \
  "$here/job.py" "$@"
