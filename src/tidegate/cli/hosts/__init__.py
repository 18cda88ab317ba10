"""Commands that run Event Processor Hosts: in this process, or several in processes of their own."""
