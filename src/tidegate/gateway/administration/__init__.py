"""The administration as one table for all protocols: operations, and the shapes of requests and answers.

Independent of any protocol: addresses are templates, values are plain.
"""
