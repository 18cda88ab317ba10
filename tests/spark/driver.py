"""A Spark driver for the tests that kill one: runs the tests' pipeline until the hub is drained.

    python -m tests.spark.driver '{"connection_string": …, "event_hub": …, "database_url": …, …}'

Ends with 0 when it is done, with 1 and the explained error on standard output otherwise.
"""

from __future__ import annotations

import json
import sys

from tests.spark.conftest import QUICK_START
from tests.spark.support import make_pipeline

from tidegate.spark import Trigger, explain, run_pipeline, spark_session


def main() -> int:
    """Run the pipeline with the arguments in ``sys.argv[1]``."""
    arguments = json.loads(sys.argv[1])
    spark = spark_session("driver", cores=2, java_options=QUICK_START, log_level="OFF")
    try:
        query = run_pipeline(
            spark,
            make_pipeline(arguments["event_hub"]),
            connection_string=arguments["connection_string"],
            database_url=arguments["database_url"],
            checkpoint_location=arguments["checkpoint"],
            trigger=Trigger(is_available_now=True),
            max_events_per_trigger=arguments["max_events_per_trigger"],
            transaction_rows_max=arguments["transaction_rows_max"],
        )
        query.awaitTermination()
    except Exception as error:
        print(explain(error), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
