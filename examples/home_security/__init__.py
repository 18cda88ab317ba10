"""100,000 homes with sensors, through state, timers and alarms: ``python -m examples.home_security``.

homes            what a home has, the limits, the hub, alarms
generator        makes up events; ``publish`` sends them, as a process of its own
readings         an event's JSON; ``reading_columns``: a batch of them as columns, ``blocks``: by block
block            the rules; ``sensors``, ``pages``, ``segments``, ``tables_of_homes``: parts in numpy
pipeline         the query on Spark; ``shapes``, ``tables``, ``checkpoint``, ``latencies``: what it needs
driver           the Spark driver, a process of its own
summary          a home's page; ``page_files``: a file of them, ``summaries``: where the files are
stage            generator and driver side by side, with one crash; ``status``: how they report to each other
verify, check    every figure, recomputed from the log and compared
demo             all of it in order, with its progress on the screen
output           the report as tables or JSON
web              the homes in a browser (``python -m examples.home_security.web``)
"""
