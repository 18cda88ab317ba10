"""What a driver and its executors need: session, Java, packages, certificates and workers."""
