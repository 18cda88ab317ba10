"""What a driver and its executors need: the session, Java, packages, certificates, workers."""
