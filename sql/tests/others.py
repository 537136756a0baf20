"""Spark and pandas read what `cofi-sql export` writes, and agree with `cofi-sql sql`: what `.ci/run` leaves to people, as Spark has half a gigabyte.

Wants what `others.txt` lists, and Java. COFI names the command, COFI_SQL the program.
"""

import unittest

import pandas
from pyspark.sql import SparkSession

import read


class Others(read.Recorded):
    def test_spark_agrees(self):
        builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
        spark = builder.getOrCreate()
        names = {name: name for name in read.tables()}
        for name in names:
            frame = spark.read.parquet(f"{self.out}/{name}")
            frame.createOrReplaceTempView(name)
            self.assertEqual(frame.count(), self.asked(f"SELECT count(*) FROM {name}")[0][0], name)
        for statement in read.STATEMENTS:
            told = [tuple(row) for row in spark.sql(statement.format(**names)).collect()]
            self.agree(statement, told)
        spark.stop()

    def test_pandas_agrees(self):
        for name in read.tables():
            frame = pandas.read_parquet(f"{self.out}/{name}")
            self.assertEqual(len(frame), self.asked(f"SELECT count(*) FROM {name}")[0][0], name)
        calls = pandas.read_parquet(f"{self.out}/calls")
        groups = calls.groupby(["recording", "function"], dropna=False)
        told = groups.agg(n=("call", "size"), own=("self_instructions", "sum"), ip=("ip", "min")).reset_index()
        told = told.astype(object).where(told.notna(), None)
        self.agree(read.STATEMENTS[0], list(told.itertuples(index=False, name=None)))


if __name__ == "__main__":
    unittest.main()
