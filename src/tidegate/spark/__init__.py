"""Spark over Event Hubs: the data source ``eventhubs``, and pipelines whose SQL effects happen exactly once.

The only package that imports pyspark.
"""
