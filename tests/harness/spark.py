"""Spark with Delta and S3: one session for all tests of a run, as one takes ten seconds to start. The environment
variable SPARK_HOME names the Spark, which scripts/spark installs."""

import os
import shutil
import sys
import tempfile
from functools import cached_property
from pathlib import Path

from .readers import quoted

WHY_NOT = "no Spark: SPARK_HOME has to name what scripts/spark installs, and there has to be a Java"

# Small data on one core: what Spark does for large data, such as compiling each query, takes seconds here.
SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def available():
    return shutil.which("java") is not None and Path(os.environ.get("SPARK_HOME", "/none"), "delta").is_dir()


class Spark:
    name = "spark"

    @cached_property
    def session(self):
        home = Path(os.environ["SPARK_HOME"])
        # Nothing of its environment but pyspark and py4j is not in ours already.
        sys.path.append(str(home.parent))
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        from pyspark.sql import SparkSession

        # Removed when the tests end.
        self.folder = tempfile.TemporaryDirectory(prefix="w2d-spark-")
        builder = SparkSession.builder.master("local[1]").config("spark.local.dir", self.folder.name)
        builder = builder.config("spark.sql.warehouse.dir", self.folder.name + "/warehouse")
        for name, value in SETTINGS.items():
            builder = builder.config(name, value)
        jars = ",".join(str(jar) for jar in sorted((home / "delta").glob("*.jar")))
        session = builder.config("spark.jars", jars).getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        return session

    def arrow(self, path, columns, where="TRUE", version=None, **options):
        if version is not None:
            options["versionAsOf"] = version
        frame = self.session.read.format("delta").options(**options).load(str(path))
        names = ", ".join(quoted(name, "`") for name in columns)
        frame.createOrReplaceTempView("history")
        return self.session.sql(f"SELECT {names} FROM history WHERE {where}").toArrow()


SPARK = Spark()
